"""A model's tokens as the grammar library sees them."""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLTokenizer

from octavo.core.errors import UnsupportedParameter
from octavo.core.types import TokenId
from octavo.tokenizer.tokenizer import Tokenizer


def make_vocabulary(
    tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: Iterable[TokenId]
) -> LLTokenizer:
    """The tokens with their bytes, in a form in which many can be tried at once.

    Ids that the model has beyond the tokenizer's have no bytes, so that no grammar allows them. It
    takes a third of a second for 50,000 tokens, and holds the interpreter while it does.

    Raises:
        UnsupportedParameter: the library does not know this kind of tokenizer.
    """
    try:
        return LLTokenizer(
            tokenizer.backend.to_str(),
            n_vocab=max(vocab_size, tokenizer.vocab_size),
            eos_token=sorted(eos_token_ids),
        )
    except Exception as error:  # the library raises whatever comes
        raise UnsupportedParameter(
            f"structured output is not possible with this model's tokenizer: {error}",
            param="structured",
        ) from None
