"""Text to token ids and back.

Wraps a `tokenizers.Tokenizer` (here called the backend) and adds what an engine needs beside it:
the exact bytes of single tokens, so that text can be decoded piece by piece; the special tokens by
name; and errors instead of panics. Where the files come from is `load` and `gguf`; decoding while
tokens arrive is `incremental`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer as Backend

from octavo.core.errors import InvalidParameter
from octavo.core.types import TokenId
from octavo.tokenizer.pieces import BytePieces, byte_rules


class Tokenizer:
    """Encodes text and decodes tokens; safe to share between threads once built.

    ``special_tokens`` maps names (``bos_token``, ``eos_token``, ...) to their text, as chat
    templates see them. ``chat_template`` is the Jinja source, if the model has one.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.backend = backend
        self.special_tokens: dict[str, str] = dict(special_tokens or {})
        self.chat_template = chat_template
        backend.no_truncation()
        backend.no_padding()
        added: dict[TokenId, Any] = backend.get_added_tokens_decoder()
        self.added_tokens: dict[TokenId, str] = {i: token.content for i, token in added.items()}
        self.all_special_ids = frozenset(i for i, token in added.items() if token.special)
        self.vocab_size: int = max(backend.get_vocab_size(), max(added, default=-1) + 1)
        rules = byte_rules(backend)
        self.rules = rules
        self.pieces = BytePieces(backend, rules, self.added_tokens)
        self.visible_pieces = BytePieces(
            backend, rules, self.added_tokens, hidden=self.all_special_ids
        )
        self._pieces_without = {frozenset[TokenId](): self.pieces}
        self._pieces_without[self.all_special_ids] = self.visible_pieces

    def pieces_without(self, hidden: frozenset[TokenId]) -> BytePieces:
        """The bytes of all tokens but the hidden ones; made once for each set of them."""
        pieces = self._pieces_without.get(hidden)
        if pieces is None:
            pieces = BytePieces(self.backend, self.rules, self.added_tokens, hidden=hidden)
            self._pieces_without[hidden] = pieces
        return pieces

    @property
    def bos_token(self) -> str | None:
        """Text of the token that begins a sequence."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """Text of the token that ends a sequence."""
        return self.special_tokens.get("eos_token")

    @property
    def bos_token_id(self) -> TokenId | None:
        """Id of the token that begins a sequence."""
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> TokenId | None:
        """Id of the token that ends a sequence."""
        return self._id_of("eos_token")

    def _id_of(self, name: str) -> TokenId | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[TokenId]:
        """Token ids of a text. Special tokens spelled out in the text become those tokens.

        Raises:
            InvalidParameter: the text is no valid Unicode (lone surrogates).
        """
        # The backend's `encode` would hold the interpreter's lock, and with it every thread, for
        # as long as it takes: a second for a megabyte. Its batches do not.
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[TokenId]]:
        """Token ids of many texts at once, on all cores.

        Raises:
            InvalidParameter: a text is no valid Unicode (lone surrogates).
        """
        try:
            encodings = self.backend.encode_batch_fast(
                list(texts), add_special_tokens=add_special_tokens
            )
        except TypeError as error:
            raise _text_error(texts, error) from None
        return [encoding.ids for encoding in encodings]

    def offsets(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Where each token of `encode` begins in the text, in characters. One that stands for none
        of them begins where the one before it does; some tokenizers leave out the space that a
        token begins with."""
        (encoding,) = self.backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return list(accumulate((begin for begin, _ in encoding.offsets), max))

    def decode(
        self,
        ids: Sequence[TokenId],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of tokens: their bytes joined and read as UTF-8.

        Each maximal run of bytes that begins no character becomes one U+FFFD (as in the WHATWG
        encoding standard). That equals the backend's own decoding, except that its byte fallback
        turns a whole run of byte tokens into U+FFFD if any of them is wrong. Ids outside the
        vocabulary have no text. With ``spaces_between_special_tokens`` off, neighbouring special
        tokens that are kept follow each other without the space that some decoders put there.
        """
        if self.rules is not None:
            pieces = self.visible_pieces if skip_special_tokens else self.pieces
            return pieces.text(ids)
        ids = [i for i in ids if 0 <= i < self.vocab_size]
        if skip_special_tokens or spaces_between_special_tokens:
            return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)
        runs: list[list[TokenId]] = [[]]
        for before, token_id in zip([None, *ids], ids, strict=False):
            if before in self.all_special_ids and token_id in self.all_special_ids:
                runs.append([])
            runs[-1].append(token_id)
        return "".join(self.backend.decode(run, skip_special_tokens=False) for run in runs)

    def token_bytes(self, token_id: TokenId) -> bytes:
        """The exact bytes that a token stands for, special tokens spelled out; empty for ids
        outside the vocabulary. Joined over the tokens of a text they are the text's UTF-8, save
        for the space that SentencePiece puts before the first word."""
        return self.pieces[token_id]


def _text_error(texts: Sequence[object], error: TypeError) -> Exception:
    """What was wrong with texts that the backend refused with a bare TypeError."""
    for text in texts:
        if not isinstance(text, str):
            return InvalidParameter(f"text to encode is a {type(text).__name__}: use a string")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as fault:
            return InvalidParameter(
                f"text is no valid Unicode: lone surrogate U+{ord(text[fault.start]):04X} at "
                f"character {fault.start} of {len(text)}; send whole characters"
            )
    return error
