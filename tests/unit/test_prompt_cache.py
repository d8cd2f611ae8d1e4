"""The cache of encoded prompts: what is made again, and what goes first."""

import pytest

from edgedit.pipelines.prompt_cache import PromptCache


def test_a_kept_prompt_is_not_made_again():
    cache, made = PromptCache(2), []

    def get(key):
        return cache.get(key, lambda: made.append(key) or f"encoded {key}")

    assert [get("a"), get("b"), get("a")] == ["encoded a", "encoded b", "encoded a"]
    assert made == ["a", "b"]
    get("c")  # b was asked for longest ago
    get("a")
    assert (made, len(cache)) == (["a", "b", "c"], 2)
    get("b")
    assert made == ["a", "b", "c", "b"]


def test_a_cleared_cache_keeps_nothing():
    cache = PromptCache()
    cache.get("a", lambda: 1)
    cache.clear()
    assert (len(cache), cache.get("a", lambda: 2)) == (0, 2)


def test_a_failure_keeps_nothing():
    cache = PromptCache()
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert len(cache) == 0
