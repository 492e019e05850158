"""Who holds which KV page: reference counts, and free pages in the order of their reuse."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence


class PagePool:
    """Pages 0 .. total - 1. A free page has no references; its contents may still be worth finding.

    Free pages without such contents are reused first, then the others, longest unused first.
    on_reuse is called with a page whose old contents are about to be lost.
    """

    def __init__(self, total: int, on_reuse: Callable[[int], None] = lambda page: None) -> None:
        self.total = total
        self.on_reuse = on_reuse
        self._references = [0] * total
        self._free = OrderedDict.fromkeys(range(total))

    @property
    def free(self) -> int:
        """How many pages `take` could give."""
        return len(self._free)

    def references(self, page: int) -> int:
        return self._references[page]

    def take(self, count: int) -> list[int]:
        """`count` pages, one reference each; the caller has checked `free`."""
        if count > len(self._free):
            raise ValueError(f"{count} pages wanted, {len(self._free)} free")
        pages = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            self._references[page] = 1
            self.on_reuse(page)
        return pages

    def share(self, page: int) -> None:
        """One more reference; a free page comes back with its contents."""
        self._free.pop(page, None)
        self._references[page] += 1

    def release(
        self, pages: Sequence[int], keep: Callable[[int], bool] = lambda page: False
    ) -> None:
        """One reference less on each of a sequence's pages, given in order of position.

        keep: whether a page's contents are worth finding again. Later pages are reused before
        earlier ones, since a prefix can only be found from its start.
        """
        for page in reversed(pages):
            if self._references[page] == 0:
                raise ValueError(f"page {page} is released more often than it was taken")
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free[page] = None
                if not keep(page):
                    self._free.move_to_end(page, last=False)
