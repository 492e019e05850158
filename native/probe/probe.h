/* The machine probe: which instructions this process may use, and how fast memory can be read.
 * Built for baseline x86-64, so it is safe to load on any host. Plain C that cffi can parse. */
#ifndef KT_PROBE_H
#define KT_PROBE_H
#include <stdint.h>

/* Changes whenever a function below does. */
int32_t kt_probe_version(void);

/* Bit i is set when the CPU has feature i and the operating system saves the registers it needs
 * (CPUID and XGETBV). Bit i is named by kt_probe_flag_name(i), as in /proc/cpuinfo; NULL past the
 * end. */
uint64_t kt_probe_flags(void);
const char *kt_probe_flag_name(int32_t bit);

/* The vendor ("GenuineIntel") and the model name, from CPUID; "" where the CPU does not tell. */
const char *kt_probe_vendor(void);
const char *kt_probe_model(void);

/* Asks the kernel for AMX tile state for this process: 1 granted, 0 refused. The threads started
 * afterwards inherit the answer. */
int32_t kt_probe_amx_permission(void);

/* Reads `bytes` of fresh memory, cut into one slice per CPU, again and again for about half of
 * `seconds`; filling the memory first takes at most the other half (a slice that is not full by
 * then is cut). Thread i is pinned to cpus[i]. Returns bytes per second over all threads, 0 where
 * it could not be measured. */
double kt_probe_read_bandwidth(const int32_t *cpus, int32_t n_cpus, int64_t bytes, double seconds);

/* From now on, touching a part of a mapped file that is not there any more ends the process with
 * `status`, after writing `message` to standard error, and not by a signal. Returns 1, or 0 where
 * that is refused or the message is too long (500 bytes). */
int32_t kt_probe_guard_maps(const char *message, int32_t status);

#endif
