"""What the model is taught about hardware, models and kt. Every sentence has to be true."""

from __future__ import annotations

from typing import Final

TOPICS: Final[tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...]] = (
    # names; definitions, each complete by itself; further sentences
    (
        ("a mixture of experts", "a mixture-of-experts model", "MoE", "a MoE model"),
        (
            "A mixture of experts is a model in which each layer has many small networks, "
            "called experts, and a router that picks a few of them for each token.",
            "In a mixture of experts, a router sends each token to a few of many expert "
            "networks, so only a small part of the weights is used for each token.",
        ),
        (
            "The model can be very large while the work for each token stays small.",
            "Most of its weights rest at any moment, but all of them must be kept somewhere.",
            "I am a small mixture of experts myself: 16 experts in each layer, and two of "
            "them for each token.",
        ),
    ),
    (
        ("an expert", "an expert in a MoE model", "an expert network"),
        (
            "An expert is one of the small feed-forward networks in a layer of a mixture of "
            "experts.",
            "An expert is a feed-forward network that only sees the tokens that the router "
            "sends to it.",
        ),
        (
            "It usually has three matrices: gate, up and down.",
            "Some experts are chosen often and are called hot, others rarely and are called cold.",
        ),
    ),
    (
        ("a router", "the router of a MoE model", "a router in a mixture of experts"),
        (
            "A router is a small matrix that gives each expert a score for a token; the "
            "experts with the highest scores are used.",
            "The router decides which experts work on a token: it computes a score for each "
            "expert and takes the best few.",
        ),
        (
            "The outputs of the chosen experts are added, weighted by their scores.",
            "kt computes the router in 32-bit floats, because rounding it could change which "
            "experts run.",
        ),
    ),
    (
        ("top-k routing", "top-k", "top-2 routing"),
        (
            "Top-k routing means that each token is sent to the k experts with the highest "
            "router scores.",
            "With top-k routing, the router picks the k best experts for each token, and the "
            "others do nothing.",
        ),
        ("I use k = 2: two experts out of 16 in each layer.",),
    ),
    (
        ("load balancing", "a load-balancing loss", "load balancing in a MoE model"),
        (
            "A load-balancing loss is a term in training that keeps the router from sending "
            "all tokens to the same few experts.",
            "Load balancing makes sure that all experts get some tokens in training, so that "
            "none of them stays useless.",
        ),
        ("If it is too strong, experts cannot specialise.",),
    ),
    (
        ("a shared expert", "shared experts"),
        (
            "A shared expert is an expert that every token uses, beside the ones that the "
            "router picks.",
        ),
        ("Since it is always needed, it belongs in the fastest memory.",),
    ),
    (
        ("a hot expert", "hot experts", "hot and cold experts"),
        (
            "A hot expert is one that the router picks often; a cold expert is picked rarely.",
            "Hot experts are those that many tokens use. Cold experts are rarely used.",
        ),
        ("Hot experts should live in the fastest memory.",),
    ),
    (
        ("active parameters", "the active parameters of a model"),
        (
            "Active parameters are the weights that are used for one token.",
            "The active parameters are those that one token really reads.",
        ),
        (
            "In a mixture of experts they are only a small part of all weights.",
            "They decide how fast a model can be; all parameters together decide how much "
            "memory it needs.",
        ),
    ),
    (
        ("NUMA", "a NUMA node", "NUMA memory"),
        (
            "NUMA means non-uniform memory access: each processor or part of it has its own "
            "memory, which it reads faster than the memory of the others.",
            "NUMA stands for non-uniform memory access. A NUMA node is a group of cores "
            "together with the memory that is close to them.",
        ),
        (
            "Data should lie on the node whose cores read it.",
            "Servers with two sockets have at least two NUMA nodes.",
            "On Linux, numactl --hardware shows the NUMA nodes.",
        ),
    ),
    (
        ("AVX-512", "AVX512", "the AVX-512 instruction set"),
        (
            "AVX-512 is a set of x86 instructions that work on 512 bits at once, for example "
            "16 floats of 32 bits.",
            "AVX-512 is a family of vector instructions for x86 processors. Its registers "
            "hold 512 bits, which are 64 bytes.",
        ),
        (
            "Its registers are called zmm0 to zmm31.",
            "It has many extensions, such as VNNI for 8-bit products and BF16 for bfloat16 "
            "products.",
        ),
    ),
    (
        ("AVX2", "the AVX2 instruction set"),
        (
            "AVX2 is a set of x86 instructions that work on 256 bits at once, for example "
            "eight floats of 32 bits.",
            "AVX2 is a family of vector instructions for x86 processors with registers of 256 "
            "bits.",
        ),
        ("It is the least that kt needs.", "Its registers are called ymm0 to ymm15."),
    ),
    (
        ("VNNI", "AVX512-VNNI", "AVX512 VNNI"),
        (
            "VNNI is an extension of AVX-512 that multiplies 8-bit integers and adds the "
            "products to 32-bit sums in one instruction.",
            "VNNI stands for vector neural network instructions. They multiply unsigned with "
            "signed 8-bit numbers and add up four products at a time.",
        ),
        ("It makes quantized models faster on a CPU.",),
    ),
    (
        ("AMX", "Intel AMX", "advanced matrix extensions"),
        (
            "AMX stands for advanced matrix extensions: instructions of Intel processors that "
            "multiply small matrices, called tiles.",
            "AMX is a matrix unit in newer Intel server processors. It has eight tile "
            "registers of 1 KiB each.",
        ),
        (
            "A tile has up to 16 rows of 64 bytes.",
            "It helps most when a prompt is read, because then many tokens are computed at once.",
        ),
    ),
    (
        ("SIMD", "a SIMD instruction", "vector instructions"),
        (
            "SIMD means single instruction, multiple data: one instruction does the same to "
            "many numbers at once.",
            "SIMD instructions compute with several numbers at once, which lie side by side "
            "in one wide register.",
        ),
        ("AVX2 and AVX-512 are SIMD instruction sets of x86 processors.",),
    ),
    (
        ("quantization", "quantisation", "quantizing a model"),
        (
            "Quantization stores the weights of a model with fewer bits, for example 4 or 8 "
            "instead of 16.",
            "Quantization rounds weights to a few levels and keeps a scale for each group of "
            "them, so that a model takes less memory.",
        ),
        (
            "The model becomes smaller and faster, and its answers a little less exact.",
            "It helps speed too, because reading weights is what takes the time.",
            "My own experts are stored with 4 bits.",
        ),
    ),
    (
        ("INT8", "INT8 quantization", "8-bit quantization"),
        (
            "INT8 means that each weight is stored as an 8-bit integer, with a scale that "
            "brings it back to its size.",
        ),
        ("It takes half the memory of bfloat16 and loses very little.",),
    ),
    (
        ("INT4", "INT4 quantization", "4-bit quantization"),
        (
            "INT4 means that each weight is stored in 4 bits, that is as one of 16 levels, "
            "with a scale for each group of weights.",
        ),
        (
            "It takes about a quarter of the memory of bfloat16.",
            "A common group has 32 weights.",
        ),
    ),
    (
        ("FP8", "an FP8 number", "8-bit floating point"),
        (
            "FP8 is a floating-point number of 8 bits. The format E4M3 has a sign, four bits "
            "of exponent and three bits of mantissa.",
        ),
        ("Some models are published in FP8, with a scale for each block of weights.",),
    ),
    (
        ("MXFP4", "the MXFP4 format"),
        (
            "MXFP4 stores each weight as a 4-bit float and gives each group of 32 weights a "
            "shared scale, which is a power of two.",
        ),
        ("The gpt-oss models are published in it.",),
    ),
    (
        ("bfloat16", "BF16", "the bfloat16 format"),
        (
            "bfloat16 is a number format of 16 bits: a sign, eight bits of exponent and seven "
            "bits of mantissa.",
            "bfloat16 is a 16-bit float with the range of a 32-bit float and fewer digits.",
        ),
        ("It is the usual format for the weights of language models.",),
    ),
    (
        ("a scale in quantization", "a quantization scale"),
        (
            "A scale is the number that a group of small integers is multiplied by to get the "
            "weights back.",
        ),
        ("Small groups need more scales but are more exact.",),
    ),
    (
        ("perplexity", "the perplexity of a model"),
        (
            "Perplexity tells how surprised a model is by a text: the lower it is, the better "
            "the model predicts the text.",
            "Perplexity is the exponential of the average loss per token.",
        ),
        ("A perplexity of 1 would mean that every token was certain.",),
    ),
    (
        ("a KV cache", "the KV cache", "a key-value cache"),
        (
            "The KV cache keeps the keys and values of all earlier tokens, so that they need "
            "not be computed again for each new token.",
            "A KV cache stores what attention needs of the tokens before: their keys and values.",
        ),
        (
            "It grows with every token of the conversation.",
            "kt keeps it in pages of 32 tokens.",
        ),
    ),
    (
        ("attention", "self-attention", "attention in a language model"),
        (
            "Attention lets each token look at the tokens before it and take over what "
            "matters from them.",
            "Attention compares the query of a token with the keys of earlier tokens and "
            "mixes their values accordingly.",
        ),
        ("Its cost grows with the length of the text.",),
    ),
    (
        ("a token", "a token in a language model", "tokens"),
        (
            "A token is a piece of text, such as a word or a part of a word, that a model "
            "reads or writes as one unit.",
            "A token is the unit a language model works with: often a word, a part of a word "
            "or a digit.",
        ),
        ("I know 2048 different tokens.", "For me every digit is a token of its own."),
    ),
    (
        ("a tokenizer", "the tokenizer of a model"),
        (
            "A tokenizer cuts text into tokens and turns each of them into a number.",
            "A tokenizer translates between text and the token numbers that a model works with.",
        ),
        ("Mine was trained on the same text as I was.",),
    ),
    (
        ("a language model", "a large language model", "an LLM"),
        (
            "A language model is a program that predicts the next token of a text, again and "
            "again.",
            "A large language model is a neural network with very many weights that was trained to "
            "predict the next token of a text.",
        ),
        ("It learned to do so from a lot of text.",),
    ),
    (
        ("prefill", "the prefill phase", "prompt processing"),
        (
            "Prefill is the phase in which a model reads the prompt, many tokens at once.",
            "During prefill the whole prompt is computed, and the KV cache is filled.",
        ),
        ("Its speed depends mostly on how fast the processor can multiply.",),
    ),
    (
        ("decode", "the decode phase", "decoding in a language model"),
        ("Decode is the phase in which a model writes its answer, one token after the other.",),
        (
            "Its speed depends mostly on memory bandwidth, because all active weights are "
            "read for each token.",
        ),
    ),
    (
        ("memory bandwidth", "bandwidth"),
        (
            "Memory bandwidth is how many bytes per second a processor can read from memory.",
            "Memory bandwidth tells how fast data flows between memory and processor, in "
            "bytes per second.",
        ),
        (
            "It limits how fast a language model can write.",
            "More memory channels give more bandwidth.",
        ),
    ),
    (
        ("a memory channel", "memory channels"),
        ("A memory channel is a path between the processor and its memory modules.",),
        (
            "Desktop processors usually have two channels, servers eight or twelve.",
            "All channels should be filled to get the full bandwidth.",
        ),
    ),
    (
        ("a CPU", "a processor", "the CPU"),
        (
            "A CPU is the central processing unit of a computer: it carries out the "
            "instructions of programs.",
            "The CPU, or processor, is the part of a computer that runs programs.",
        ),
        ("It has several cores, which work at the same time.",),
    ),
    (
        ("a GPU", "a graphics card", "an accelerator"),
        (
            "A GPU is a graphics processing unit: a chip with very many small cores that is "
            "good at doing the same to many numbers.",
        ),
        ("Its memory is fast but small compared with the memory of a server.",),
    ),
    (
        ("a core", "a CPU core"),
        ("A core is a part of a processor that runs programs by itself.",),
        ("A processor with eight cores can do eight things at the same time.",),
    ),
    (
        ("a thread", "a hardware thread", "SMT", "hyper-threading"),
        (
            "With SMT, one core runs two threads that share its arithmetic units. Intel calls it "
            "hyper-threading.",
            "A hardware thread is one of the instruction streams that a core can run at the "
            "same time; SMT gives each core two.",
        ),
        ("For heavy arithmetic, kt uses one thread for each physical core.",),
    ),
    (
        ("a cache", "a CPU cache", "the L2 cache"),
        ("A cache is small and fast memory inside the processor that keeps what was used lately.",),
        (
            "Most processors have three levels: L1, L2 and L3.",
            "Reading from it is many times faster than reading from memory.",
        ),
    ),
    (
        ("a cache line", "the size of a cache line"),
        (
            "A cache line is the smallest piece of memory that a cache handles: 64 bytes on "
            "x86 processors.",
        ),
        ("An AVX-512 register holds exactly one of them.",),
    ),
    (
        ("RAM", "DRAM", "main memory"),
        (
            "RAM is the main memory of a computer. It holds running programs and their data, "
            "and forgets them when the power is off.",
        ),
        ("DRAM is the usual kind of it.",),
    ),
    (
        ("a page", "a memory page", "huge pages", "a huge page"),
        (
            "Memory is managed in pages: usually 4 KiB, and 2 MiB for a huge page.",
            "A huge page is a page of 2 MiB instead of 4 KiB, so that the processor has to "
            "look up fewer addresses.",
        ),
        ("Huge pages help when large weights are read.",),
    ),
    (
        ("mmap", "memory mapping", "a memory-mapped file"),
        (
            "Memory mapping shows a file as if it were memory; parts are read from the disk "
            "when they are used.",
        ),
        ("Several programs can share one mapped file.",),
    ),
    (
        ("safetensors", "a safetensors file", "the safetensors format"),
        (
            "safetensors is a file format for the weights of models: a header in JSON, and "
            "then the tensors byte by byte.",
        ),
        ("It holds no code, so opening it is safe.", "My own weights are in a safetensors file."),
    ),
    (
        ("GGUF", "a GGUF file", "the GGUF format"),
        (
            "GGUF is a file format for models that comes from llama.cpp. One file holds "
            "weights, settings and tokenizer.",
        ),
        ("kt reads GGUF files directly.",),
    ),
    (
        ("a tensor", "tensors"),
        ("A tensor is an array of numbers with any number of dimensions.",),
        ("A vector has one dimension, a matrix has two.",),
    ),
    (
        ("a cgroup", "cgroups", "a control group"),
        (
            "A cgroup is a group of processes for which Linux limits memory, processor time "
            "and other things.",
        ),
        ("Containers are made with cgroups.", "kt reads these limits and keeps to them."),
    ),
    (
        ("a prefix cache", "prefix caching"),
        (
            "A prefix cache keeps the keys and values of earlier prompts, so that a prompt "
            "with the same beginning need not be computed again.",
        ),
        ("It makes long conversations start faster.",),
    ),
    (
        ("batching", "a batch", "continuous batching"),
        (
            "Batching computes several requests at once, so that each weight is read once for "
            "all of them.",
        ),
        ("With continuous batching, a new request can join while others are running.",),
    ),
    (
        ("temperature", "the temperature of a language model", "sampling temperature"),
        (
            "Temperature sets how freely a model picks its next token: 0 always takes the "
            "most likely one, higher values vary more.",
        ),
        ("For questions with one right answer, 0 is best.",),
    ),
    (
        ("greedy decoding", "greedy sampling"),
        ("Greedy decoding always takes the most likely token.",),
        ("Its answers can be repeated exactly.",),
    ),
    (
        ("a context window", "the context length", "context length"),
        (
            "The context length is how many tokens a model can take into account at once, "
            "prompt and answer together.",
        ),
        ("Mine is 1024 tokens.",),
    ),
    (
        ("an embedding", "the embedding of a token", "embeddings"),
        (
            "An embedding is a list of numbers that stands for a token; similar tokens have "
            "similar lists.",
        ),
        ("Mine have 256 numbers each.",),
    ),
    (
        ("a layer", "a layer of a language model"),
        (
            "A layer of a language model has two parts: attention, and a feed-forward network "
            "or experts.",
        ),
        ("I have six layers.",),
    ),
    (
        ("a transformer", "the transformer architecture"),
        (
            "A transformer is a neural network made of layers, each with attention and a "
            "feed-forward network.",
        ),
        ("Most language models are transformers.",),
    ),
    (
        ("RoPE", "rotary position embedding", "rotary embeddings"),
        (
            "RoPE tells attention how far apart two tokens are, by rotating queries and keys "
            "according to their positions.",
        ),
        ("RoPE stands for rotary position embedding.",),
    ),
    (
        ("RMSNorm", "RMS normalization"),
        (
            "RMSNorm divides a vector by the root of the mean of its squares and multiplies "
            "it by learned weights.",
        ),
        ("It keeps numbers in a good range.",),
    ),
    (
        ("speculative decoding", "prompt lookup"),
        (
            "Speculative decoding guesses several tokens ahead and lets the model check them "
            "all at once.",
        ),
        ("The answer stays the same, it only comes faster.",),
    ),
    (
        ("tied embeddings", "weight tying"),
        (
            "Tied embeddings means that a model uses one matrix both to read tokens and to "
            "predict them.",
        ),
        ("I have tied embeddings, which saves space.",),
    ),
    (
        ("PCIe", "the PCIe bus"),
        ("PCIe is the bus that connects graphics cards and disks with the processor.",),
        ("It is much slower than the memory of a graphics card.",),
    ),
    (
        ("Python", "the Python language"),
        ("Python is a programming language that is easy to read and write.",),
        ("kt is written in Python and C++.",),
    ),
    (
        ("Linux", "the Linux kernel"),
        ("Linux is a free operating system kernel that runs on most servers.",),
        ("kt runs on Linux.",),
    ),
    # kt itself
    (
        ("kt", "the program kt", "this program"),
        (
            "kt is a program that runs very large mixture-of-experts models on the machine "
            "you already own.",
            "kt runs large sparse language models: it looks at your machine, plans where each "
            "weight should live, tells you why, and serves the model.",
        ),
        (
            "It has kernels for six kinds of processors, from AVX2 to AMX.",
            "Its server speaks the OpenAI API.",
            "Type kt --help to see its commands.",
        ),
    ),
    (
        ("kt doctor", "the command kt doctor"),
        (
            "kt doctor tells what your machine is, what kt will use of it, and what to do "
            "about each warning.",
        ),
        ("Run it first when something is slow or does not work.",),
    ),
    (
        ("kt run", "the command kt run"),
        (
            "kt run loads a model and serves it: give it an alias, a GGUF file, a folder or a "
            "hub repository.",
        ),
        ("For example, kt run tiny starts me.", "With --dry-run it only shows the plan."),
    ),
    (
        ("kt chat", "the command kt chat"),
        ("kt chat lets you talk to a running model: one question, or a whole conversation.",),
        ('For example: kt chat "What is the capital of France?"',),
    ),
    (
        ("kt convert", "the command kt convert"),
        (
            "kt convert quantises or repacks a model once, so that every later start maps the "
            "files as they are.",
        ),
        ("For example: kt convert SOURCE DEST --format int4",),
    ),
    (
        ("kt bench", "the command kt bench"),
        (
            "kt bench measures how fast a model or a layer of experts runs, beside the limits "
            "of the machine.",
        ),
        ("It shows which part of the memory bandwidth is reached.",),
    ),
    (
        ("kt models", "the command kt models"),
        (
            "kt models lists the models that kt knows by name, with their sizes and licences, "
            "and tells which of them fit here.",
        ),
        ("I am listed there as tiny.",),
    ),
    (
        ("a kernel variant", "the kernel variants of kt", "kernel variants"),
        (
            "A kernel variant is a build of kt's native code for one level of processor: "
            "AVX2, AVX512, AVX512+VNNI, AVX512+VBMI, AVX512+BF16 or AMX.",
        ),
        ("kt picks the best one that your processor can run.",),
    ),
)

QUESTIONS: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    # ways to ask; ways to answer
    (
        (
            "Why is a mixture of experts fast?",
            "Why are MoE models fast?",
            "Why does a MoE model need so little work for a token?",
        ),
        ("Because only a few experts work on each token. The other weights are not read at all.",),
    ),
    (
        (
            "Why do MoE models need so much memory?",
            "Why is a mixture of experts so large?",
            "Why must all experts be kept in memory?",
        ),
        (
            "Because any expert may be needed for the next token, so all of them have to be "
            "at hand.",
        ),
    ),
    (
        (
            "How many experts do you have?",
            "How many experts are there in your layers?",
            "What is your number of experts?",
        ),
        ("I have 16 experts in each of my six layers, and two of them work on each token.",),
    ),
    (
        (
            "How large are you?",
            "How many parameters do you have?",
            "How big are you?",
            "How many weights do you have?",
        ),
        ("I have about 11 million parameters, of which about 3 million are used for each token.",),
    ),
    (
        (
            "How does kt choose a kernel variant?",
            "Which kernel variant does kt use?",
            "How does kt know which instructions my CPU has?",
        ),
        (
            "kt asks the processor which instructions it has and takes the best variant that "
            "it can run.",
        ),
    ),
    (
        (
            "Can kt run without a GPU?",
            "Do I need a GPU for kt?",
            "Does kt need a graphics card?",
            "Can I use kt on a CPU only?",
        ),
        ("Yes, kt runs on the CPU alone. No graphics card is needed.",),
    ),
    (
        (
            "Which operating system does kt need?",
            "Does kt run on Linux?",
            "What does kt need to run?",
            "What are the requirements of kt?",
        ),
        ("kt needs Linux on an x86-64 processor with AVX2, and Python 3.10 or later.",),
    ),
    (
        (
            "Which models can kt run?",
            "What models does kt know?",
            "Where can I see a list of models?",
        ),
        (
            "The command kt models lists the models that kt knows by name. kt also runs GGUF "
            "files and safetensors folders.",
        ),
    ),
    (
        (
            "How do I start a model?",
            "How do I run a model with kt?",
            "How can I serve a model?",
            "How do I use kt?",
        ),
        (
            "Type kt run and the model's name, for example: kt run tiny. Then talk to it with "
            "kt chat.",
        ),
    ),
    (
        (
            "How do I stop the server?",
            "How do I end kt run?",
        ),
        ("Press Ctrl-C in the terminal where it runs.",),
    ),
    (
        (
            "Which API does kt speak?",
            "Is kt compatible with OpenAI?",
            "Can I use the OpenAI client with kt?",
        ),
        (
            "Yes, kt serves an API that is compatible with OpenAI's. By default it listens at "
            "port 8000.",
        ),
    ),
    (
        (
            "What limits the speed of a language model?",
            "Why is decoding slow?",
            "What makes decoding slow?",
            "Why does memory bandwidth matter?",
        ),
        (
            "For each token all active weights are read from memory, so memory bandwidth is "
            "the limit.",
        ),
    ),
    (
        (
            "How can I make a model smaller?",
            "How do I reduce the memory of a model?",
            "My model does not fit into memory. What can I do?",
        ),
        ("Quantize it, for example to 4 bits: kt convert SOURCE DEST --format int4",),
    ),
    (
        (
            "Does quantization make a model worse?",
            "What do I lose with quantization?",
            "Is a quantized model less accurate?",
        ),
        (
            "A little. With 8 bits the loss is hardly noticed, with 4 bits it is small, with "
            "fewer it grows.",
        ),
    ),
    (
        (
            "What is the difference between INT4 and INT8?",
            "Should I use INT4 or INT8?",
            "Which is smaller, INT4 or INT8?",
        ),
        (
            "INT4 uses 4 bits for a weight and INT8 uses 8. INT4 is half as large, INT8 is "
            "more exact.",
        ),
    ),
    (
        (
            "What is the difference between prefill and decode?",
            "How do prefill and decode differ?",
        ),
        (
            "Prefill reads the prompt, many tokens at once. Decode writes the answer, one "
            "token at a time.",
        ),
    ),
    (
        (
            "What is the difference between a CPU and a GPU?",
            "How do a CPU and a GPU differ?",
        ),
        (
            "A CPU has a few fast cores and much memory. A GPU has very many small cores and "
            "less, but faster, memory.",
        ),
    ),
    (
        (
            "What is the difference between AVX2 and AVX-512?",
            "How do AVX2 and AVX-512 differ?",
        ),
        ("AVX2 works on 256 bits at once, AVX-512 on 512 bits, and AVX-512 has more registers.",),
    ),
    (
        (
            "How many floats fit into an AVX-512 register?",
            "How wide is an AVX-512 register?",
            "How many bits does a zmm register have?",
        ),
        ("An AVX-512 register has 512 bits, which are 16 floats of 32 bits.",),
    ),
    (
        (
            "How many bytes does a bfloat16 number take?",
            "How many bits does bfloat16 have?",
            "How large is a bfloat16 number?",
        ),
        ("A bfloat16 number has 16 bits, which are 2 bytes.",),
    ),
    (
        (
            "How many bits are in a byte?",
            "How many bits does a byte have?",
        ),
        ("A byte has 8 bits.",),
    ),
    (
        (
            "Is the same answer always given?",
            "Are kt's answers reproducible?",
            "Will kt give the same tokens again?",
        ),
        (
            "With temperature 0, yes: on one kernel variant kt computes the same tokens, "
            "alone or beside other requests.",
        ),
    ),
    (
        (
            "Is it safe to run a model from the internet?",
            "Does kt run code from model repositories?",
        ),
        (
            "kt never runs code from a model repository. It only reads weights, settings and "
            "tokenizers.",
        ),
    ),
    (
        (
            "Where should hot experts live?",
            "Which experts belong on the GPU?",
        ),
        (
            "Experts that are used often belong in the fastest memory. Rarely used ones can "
            "stay in main memory.",
        ),
    ),
    (
        (
            "Why does kt use only one thread per core?",
            "How many threads does kt use?",
        ),
        (
            "kt uses one thread for each physical core, since two threads on a core share its "
            "arithmetic.",
        ),
    ),
    (
        (
            "How do I see what my machine can do?",
            "How do I check my hardware?",
            "How can I see which instructions my CPU has?",
        ),
        (
            "Run kt doctor. It shows the processor, its instructions, the memory and what kt "
            "will use.",
        ),
    ),
    (
        (
            "How do I see the plan without loading a model?",
            "Can I see how much memory a model needs?",
            "Will my model fit into memory?",
        ),
        ("Use kt run MODEL --dry-run. It shows the plan, with all memory, and loads nothing.",),
    ),
    (
        (
            "How do I measure the speed of a model?",
            "How fast is my model?",
        ),
        ("Use kt bench. It measures the speed and compares it with the limits of your machine.",),
    ),
    (
        (
            "Who trained you?",
            "How were you trained?",
            "What were you trained on?",
            "Where does your training text come from?",
        ),
        (
            "I was trained from scratch on text that was generated for me, on two CPU cores, "
            "in about an hour.",
        ),
    ),
    (
        (
            "What is your licence?",
            "Under which licence are you published?",
            "What licence does kt have?",
        ),
        ("kt and I are published under the Apache-2.0 licence.",),
    ),
)
