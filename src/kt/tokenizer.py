"""A model's tokenizer: text to ids and back, and messages to a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kt.text import gguf_tokenizer, hf_tokenizer
from kt.text.chat_template import ChatTemplate, Message, TemplateError
from kt.text.control_text import ControlText
from kt.text.description import Description
from kt.text.detokenizer import Detokenizer, TokenBytes, full_text
from kt.text.pieces import TextTooLong, encode_long
from kt.weights.checkpoint import Checkpoint

__all__ = ["Detokenizer", "TemplateError", "TextTooLong", "Tokenizer", "load"]


def load(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of `checkpoint`. Raises ModelError."""
    if checkpoint.gguf_metadata is not None:
        return Tokenizer(gguf_tokenizer.read(checkpoint.gguf_metadata))
    return Tokenizer(hf_tokenizer.read(checkpoint.folder, checkpoint.config))


class Tokenizer:
    """eos_ids: ids that end an answer; bos_id: or None; vocab_size: one more than the highest id.
    special_ids: text of each special token -> its id. template: the source of the chat templates,
    "" without one.

    Nothing changes after construction, so threads may share one.
    """

    def __init__(self, description: Description) -> None:
        """Takes over description.tokenizer. Raises ModelError for a tokenizer or template that
        cannot be used.
        """
        self.eos_ids = description.eos_ids
        self.bos_id = description.bos_id
        self._prefix = list(description.prefix)
        self._tokenizer = description.tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        added = {
            id_: token.content for id_, token in self._tokenizer.get_added_tokens_decoder().items()
        }
        self.vocab_size = max(self._tokenizer.get_vocab_size(), max(added, default=-1) + 1)
        self._control = ControlText(self._tokenizer)
        special = frozenset(self._control.texts)
        self.special_ids: Mapping[str, int] = {
            text: id_ for id_, text in self._control.texts.items()
        }
        self._bytes = TokenBytes(self._tokenizer, self.vocab_size, added, special)
        self.template = "\n".join(description.templates.values())
        self._template = (
            ChatTemplate(description.templates, description.special_tokens)
            if description.templates
            else None
        )

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Tokenizer:
        """As the function of this module."""
        return load(checkpoint)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(
        self, text: str, *, special: bool = False, add_bos: bool = True, limit: int | None = None
    ) -> list[int]:
        """Ids of `text`, after one BOS if the model wants it. special: text of special tokens
        becomes those tokens. Raises TextTooLong if there are more than `limit`.
        """
        ids = self._ids(self._control.seal(text) if special else text, limit)
        prefix = self._prefix
        return [*prefix, *ids] if add_bos and ids[: len(prefix)] != prefix else ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`."""
        return full_text(self._bytes, list(ids), skip_special=skip_special)

    def detokenizer(self, skip_special: bool = True, shown: Iterable[str] = ()) -> Detokenizer:
        """A Detokenizer for one answer. shown: special tokens that are not skipped."""
        ids = self.special_ids
        keep = frozenset(ids[text] for text in shown if text in ids)
        return Detokenizer(self._bytes, skip_special=skip_special, keep=keep)

    def token_bytes(self) -> list[bytes]:
        """What every id below vocab_size stands for, special tokens' text included."""
        return [self._bytes(token, skip_special=False) for token in range(self.vocab_size)]

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> str:
        """The prompt as text; extra: further variables of the template. Raises TemplateError."""
        if self._template is None:
            raise TemplateError("the model has no chat template", hint="Use /v1/completions.")
        return self._template.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, extra=extra
        )

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        limit: int | None = None,
        **extra: Any,
    ) -> list[int]:
        """The prompt as ids. Special tokens are the template's alone: in the messages they are
        text.

        BOS is the template's business, too; only one is kept if it writes several. Raises
        TemplateError; TextTooLong if there are more than `limit`.
        """
        try:
            mark, (messages, tools, extra) = self._control.mark(list(messages), tools, extra)
        except RecursionError:
            raise TemplateError("the messages are nested too deeply") from None
        rendered = self.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **extra
        )
        ids = self._ids(self._control.encodable(rendered, mark), limit)
        while self.bos_id is not None and ids[:2] == [self.bos_id, self.bos_id]:
            del ids[0]
        return ids

    def _ids(self, text: str, limit: int | None) -> list[int]:
        return encode_long(self._piece, text, limit)

    def _piece(self, text: str) -> list[int]:
        if not text.isascii():  # half a surrogate pair is no character, and JSON can hold one
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        real = self._control.real_ids
        # encode() would keep all other threads from running.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return [real.get(id_, id_) for id_ in encoding.ids]
