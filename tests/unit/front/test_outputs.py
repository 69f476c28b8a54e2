from __future__ import annotations

from octavo.front.outputs import CompletionDelta, DecodedLogprob, joined


def test_joined_news_are_the_same_news() -> None:
    first, second = (DecodedLogprob(i, "x", b"x", -0.5, 1) for i in (4, 5))
    news = [
        CompletionDelta(
            index=1,
            text="a",
            token_ids=(4,),
            logprobs=(first,),
            prompt_logprobs=(None,),
            num_cached_tokens=0,
        ),
        CompletionDelta(index=0, text="c", token_ids=(7, 8), num_cached_tokens=16),
        CompletionDelta(index=1, text="b", token_ids=(5,), logprobs=(second,)),
        CompletionDelta(index=0, finish_reason="stop", stop_reason=7),
        CompletionDelta(index=1, finish_reason="error", error="broken"),
    ]
    assert joined(news) == [
        CompletionDelta(
            index=1,
            text="ab",
            token_ids=(4, 5),
            logprobs=(first, second),
            prompt_logprobs=(None,),
            num_cached_tokens=0,
            finish_reason="error",
            error="broken",
        ),
        CompletionDelta(
            index=0,
            text="c",
            token_ids=(7, 8),
            num_cached_tokens=16,
            finish_reason="stop",
            stop_reason=7,
        ),
    ]
    assert joined(joined(news)) == joined(news)
    assert joined([]) == []
