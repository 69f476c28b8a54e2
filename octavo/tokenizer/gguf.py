"""Builds a `Tokenizer` from the metadata of a GGUF file.

A GGUF file carries the vocabulary, the merges and the names of things, but only a label for the
way text is cut into words and normalised before that; the labels' meanings are the table here. They
follow the tokenizer that the model was trained with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from octavo.core.errors import ModelLoadError
from octavo.core.types import TokenId
from octavo.tokenizer.tokenizer import Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
"""Values of ``tokenizer.ggml.token_type``; 1 is a normal token."""

_PREFIX = "tokenizer.ggml."
_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "sep_token": "seperator_token_id",
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
}
_SPACE = "\u2581"

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """What a value of ``tokenizer.ggml.pre`` stands for."""

    split: str | None = None
    """Regular expression of words; None for GPT-2's, which is built into the library."""
    single_digits: bool = False
    """Each digit is a word of its own, before the words are cut."""
    nfc: bool = False
    """Text is composed (Unicode NFC) first."""
    ignore_merges: bool = False
    """A word that is a token as a whole is taken as that, whatever the merges say."""
    add_bos: bool = False
    """Whether a text begins with BOS where the file does not say."""


_GPT2_STYLE = _Style()
_LLAMA3_STYLE = _Style(split=_LLAMA3, ignore_merges=True, add_bos=True)
_STYLES = {
    "default": _GPT2_STYLE,
    "gpt-2": _GPT2_STYLE,
    "smollm": _Style(single_digits=True),
    "starcoder": _Style(single_digits=True),
    "llama-bpe": _LLAMA3_STYLE,
    "llama3": _LLAMA3_STYLE,
    "llama-v3": _LLAMA3_STYLE,
    "smaug-bpe": _Style(split=_LLAMA3),
    "qwen2": _Style(split=_QWEN2, nfc=True),
    "deepseek-r1-qwen": _Style(split=_QWEN2, nfc=True),
    "tekken": _Style(split=_TEKKEN, ignore_merges=True, add_bos=True),
}


def tokenizer_from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
    """The tokenizer that the ``tokenizer.*`` keys of a GGUF file describe.

    Raises:
        ModelLoadError: a key is missing or damaged, or the file asks for a kind of tokenizer that
            is not supported.
    """
    vocabulary = _Vocabulary.read(metadata)
    model = metadata.get(_PREFIX + "model")
    if model == "gpt2":
        style = _style(metadata)
        backend = _byte_level(vocabulary, style)
        add_bos = style.add_bos
    elif model == "llama":
        backend = _sentencepiece(vocabulary, metadata)
        add_bos = True
    else:
        raise ModelLoadError(
            f"the GGUF file's tokenizer.ggml.model is {model!r}: supported are 'gpt2' (byte-level "
            "BPE) and 'llama' (SentencePiece); use --tokenizer to take the tokenizer from elsewhere"
        )
    names = {
        name: vocabulary.tokens[token_id]
        for name, key in _NAMES.items()
        if (token_id := vocabulary.id_at(metadata, key)) is not None
    }
    backend.add_tokens(list(vocabulary.added_tokens(set(names.values()))))
    _set_post_processor(backend, metadata, names, add_bos)
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        special_tokens=names,
        chat_template=template if isinstance(template, str) else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Vocabulary:
    """The lists of a GGUF file that run in parallel over token ids."""

    tokens: list[str]
    types: Sequence[int] | None
    scores: Sequence[float] | None
    merges: Sequence[str] | None

    @classmethod
    def read(cls, metadata: Mapping[str, object]) -> _Vocabulary:
        tokens = metadata.get(_PREFIX + "tokens")
        if not isinstance(tokens, list) or not tokens:
            raise ModelLoadError(
                "the GGUF file has no list of tokens (tokenizer.ggml.tokens): it carries no "
                "tokenizer; name one with --tokenizer"
            )
        lists: dict[str, Any] = {}
        for name, key in (("types", "token_type"), ("scores", "scores")):
            values = metadata.get(_PREFIX + key)
            if values is not None and (not isinstance(values, list) or len(values) != len(tokens)):
                num_values = len(values) if isinstance(values, list) else 0
                raise ModelLoadError(
                    f"the GGUF file's tokenizer.ggml.{key} has {num_values} entries for "
                    f"{len(tokens)} tokens: the file is damaged"
                )
            lists[name] = values
        merges = metadata.get(_PREFIX + "merges")
        return cls(tokens=tokens, merges=merges if isinstance(merges, list) else None, **lists)

    def id_at(self, metadata: Mapping[str, object], key: str) -> TokenId | None:
        """A token id among the metadata; files use impossible ids to say that there is none."""
        value = metadata.get(_PREFIX + key)
        in_range = isinstance(value, int) and 0 <= value < len(self.tokens)
        return value if isinstance(value, int) and in_range else None

    def ids(self) -> dict[str, TokenId]:
        """Token to id."""
        return {token: i for i, token in enumerate(self.tokens)}

    def added_tokens(self, named: set[str]) -> Iterator[AddedToken]:
        """Tokens to be found whole in any text. Without types, those are the named ones."""
        if self.types is None:
            for token in self.tokens:
                if token in named:
                    yield AddedToken(token, special=True, normalized=False)
            return
        for token, kind in zip(self.tokens, self.types, strict=True):
            if kind in (_CONTROL, _UNKNOWN):
                yield AddedToken(token, special=True, normalized=False)
            elif kind == _USER_DEFINED:
                yield AddedToken(token, special=False, normalized=False)

    def merge_pairs(self) -> list[tuple[str, str]] | None:
        """The merges of the file, best first."""
        if self.merges is None:
            return None
        pairs = []
        for merge in self.merges:
            left, _, right = merge.partition(" ")
            if not left or not right:
                raise ModelLoadError(
                    f"tokenizer.ggml.merges of the GGUF file holds {merge!r}: expected two tokens "
                    "with a space between"
                )
            pairs.append((left, right))
        return pairs

    def merges_from_scores(self) -> list[tuple[str, str]]:
        """SentencePiece's merges: any two tokens that join to a token, the best score first."""
        scores, types = self.scores, self.types
        if scores is None:
            raise ModelLoadError(
                "the GGUF file has neither tokenizer.ggml.merges nor tokenizer.ggml.scores: "
                "text cannot be cut into its tokens; name another tokenizer with --tokenizer"
            )
        whole = (_CONTROL, _UNKNOWN, _BYTE)
        parts = {
            token: i
            for i, token in enumerate(self.tokens)
            if types is None or types[i] not in whole
        }
        found = []
        for token, i in parts.items():
            for cut in range(1, len(token)):
                left, right = token[:cut], token[cut:]
                if left in parts and right in parts:
                    found.append((-scores[i], parts[left], parts[right], left, right))
        found.sort()
        return [(left, right) for *_, left, right in found]


def _style(metadata: Mapping[str, object]) -> _Style:
    name = metadata.get(_PREFIX + "pre", "default")
    style = _STYLES.get(name) if isinstance(name, str) else None
    if style is None:
        raise ModelLoadError(
            f"the GGUF file's tokenizer.ggml.pre is {name!r}: supported are "
            f"{', '.join(_STYLES)}; use --tokenizer to take the tokenizer from elsewhere"
        )
    return style


def _byte_level(vocabulary: _Vocabulary, style: _Style) -> Backend:
    """Byte-level BPE, as GPT-2 introduced it."""
    merges = vocabulary.merge_pairs()
    if merges is None:
        raise ModelLoadError(
            "the GGUF file has no tokenizer.ggml.merges: its byte-level BPE cannot be rebuilt; "
            "name another tokenizer with --tokenizer"
        )
    backend = Backend(_bpe(vocabulary, merges, ignore_merges=style.ignore_merges))
    if style.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[Any] = []
    if style.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if style.split is not None:
        steps.append(pre_tokenizers.Split(Regex(style.split), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=style.split is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(vocabulary: _Vocabulary, metadata: Mapping[str, object]) -> Backend:
    """SentencePiece's BPE with byte fallback. Each stretch of text between special tokens begins
    with an extra space, unless the file says no."""
    merges = vocabulary.merge_pairs()
    if merges is None:
        merges = vocabulary.merges_from_scores()
    unknown = vocabulary.id_at(metadata, "unknown_token_id")
    backend = Backend(
        _bpe(
            vocabulary,
            merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
        )
    )
    spaces: list[Any] = [normalizers.Replace(" ", _SPACE)]
    text: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get(_PREFIX + "add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(_SPACE))
        text.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(spaces)
    backend.decoder = decoders.Sequence(text)
    return backend


def _bpe(vocabulary: _Vocabulary, merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(vocab=vocabulary.ids(), merges=merges, **options)
    except Exception as error:  # the library raises bare Exception, naming the merge at fault
        raise ModelLoadError(
            f"tokens and merges of the GGUF file do not fit together: {error}"
        ) from None


def _set_post_processor(
    backend: Backend, metadata: Mapping[str, object], names: Mapping[str, str], add_bos: bool
) -> None:
    """Puts BOS before and EOS behind a text, as the file or its kind of tokenizer wants."""
    ids = {
        role: backend.token_to_id(names[f"{role}_token"])
        for role, default in (("bos", add_bos), ("eos", False))
        if metadata.get(f"{_PREFIX}add_{role}_token", default) and f"{role}_token" in names
    }
    if ids:
        before = ["bos:0"] if "bos" in ids else []
        after = ["eos:0"] if "eos" in ids else []
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A:0", *after], special_tokens=list(ids.items())
        )
