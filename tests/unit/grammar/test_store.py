from __future__ import annotations

import threading
import time
from concurrent.futures import wait

import pytest
from llguidance import LLTokenizer

from octavo.core.errors import InvalidParameter
from octavo.core.params import SamplingParams, Structured
from octavo.grammar import store as module
from octavo.grammar.store import GrammarStore
from octavo.tokenizer.tokenizer import Tokenizer

AB = Structured.regex("ab")


def wanting(structured: Structured | None) -> SamplingParams:
    return SamplingParams(structured=structured)


@pytest.fixture
def store(vocabulary: LLTokenizer) -> GrammarStore:
    return GrammarStore(lambda: vocabulary)


def eventually_no_thread() -> bool:
    for _ in range(200):
        if not any(thread.name == "octavo-grammar" for thread in threading.enumerate()):
            return True
        time.sleep(0.01)
    return False


def test_a_grammar_is_compiled_once_and_each_has_a_matcher_of_its_own(
    store: GrammarStore, tokenizer: Tokenizer
) -> None:
    assert store.prepare(wanting(None)) is None
    first, second = store.prepare(wanting(AB)), store.prepare(wanting(AB))
    assert first is not None and (second is None or second is first)
    first.result(10)
    assert store.prepare(wanting(AB)) is None
    a, b = (tokenizer.encode(char, add_special_tokens=False)[0] for char in "ab")
    one, other = store.matcher(AB, [a, b]), store.matcher(AB, [])
    assert one.is_complete and not other.is_complete
    other.consume([b])
    assert other.error and store.matcher(AB, [a]).error is None
    assert eventually_no_thread(), "no thread waits for more"


def test_whoever_was_not_prepared_waits(store: GrammarStore) -> None:
    assert not store.matcher(AB, []).is_complete


def test_a_wrong_grammar_fails_its_own_future(store: GrammarStore) -> None:
    wrong, right = store.prepare(wanting(Structured.regex("("))), store.prepare(wanting(AB))
    assert wrong is not None
    with pytest.raises(InvalidParameter):
        wrong.result(10)
    assert right is None or right.result(10)
    with pytest.raises(InvalidParameter):
        store.matcher(Structured.regex("("), [])


def test_a_panic_of_the_library_is_an_error_too(
    store: GrammarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        pass

    def panics(*_: object) -> None:
        raise Panic("at the disco")

    monkeypatch.setattr(module, "compiled", panics)
    with pytest.raises(InvalidParameter, match="Panic: at the disco"):
        store.matcher(AB, [])
    monkeypatch.undo()
    assert store.matcher(AB, []).error is None


def test_many_at_once_and_no_more_than_so_many_are_kept(store: GrammarStore) -> None:
    forms = [Structured.regex(f"a{{{n}}}") for n in range(1, module.CAPACITY + 10)]
    futures = [future for form in forms if (future := store.prepare(wanting(form))) is not None]
    assert not wait(futures, 20).not_done
    assert len(store._made) == module.CAPACITY
    assert store.prepare(wanting(forms[-1])) is None
    assert store.matcher(forms[0], []).error is None, "forgotten ones are made again"


def test_chains_of_references_do_not_end_the_process(store: GrammarStore) -> None:
    length = 4000
    rules = [f'r{i}: "x" r{i + 1}' for i in range(length)]
    lark = "\n".join(["start: r0", *rules, f'r{length}: "y"'])
    defs = {
        f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)
    }
    schema = {"$defs": {**defs, f"d{length}": {"type": "null"}}, "$ref": "#/$defs/d0"}
    for form in (Structured.grammar(lark), Structured.json(schema)):
        try:
            store.matcher(form, [])
        except InvalidParameter as error:
            assert "too" in str(error)
