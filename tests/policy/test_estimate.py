"""What a request will cost: a guess at first, then what requests have cost, and by how much that may be wrong."""

import random
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.policy.estimate import TokenEstimate
from tests.policy.simulated import law


def test_first_guess_is_a_token_for_four_characters_and_a_short_answer() -> None:
    assert TokenEstimate().of(400, None) == (100 + 256, 0)


@pytest.mark.parametrize("bound", [1, 50, 4000])
def test_first_guess_of_an_answer_is_its_bound_where_it_has_one(bound: int) -> None:
    assert TokenEstimate().of(400, bound) == (100 + bound, 0)


def test_each_answer_costs() -> None:
    assert TokenEstimate().of(400, 50, answers=3) == (100 + 150, 0)
    assert TokenEstimate().of(400, None, answers=3) == (100 + 3 * 256, 0)


def test_request_costs_something_whatever_it_holds() -> None:
    assert TokenEstimate().of(0, 0) == (1, 0)


def test_first_answer_replaces_the_guess() -> None:
    estimate = TokenEstimate()
    estimate.learn(1000, 500, 100)
    # Half a token for a character; an answer of 100, that may as well differ by 50.
    assert estimate.of(200, None) == (100 + 100, 50)


def test_estimate_is_not_above_the_bound_of_the_answer() -> None:
    estimate = TokenEstimate()
    estimate.learn(1000, 500, 100)
    assert estimate.of(200, 80) == (100 + 80, 0)
    assert estimate.of(200, 4000) == (100 + 100, 50)


def test_answers_to_one_request_are_learned_as_that_many() -> None:
    estimate = TokenEstimate()
    estimate.learn(1000, 250, 400, answers=4)
    assert estimate.of(400, None, answers=2) == (100 + 2 * 100, 2 * 50)


@pytest.mark.parametrize(("characters", "prompt"), [(0, 500), (1000, 0)])
def test_prompt_of_which_nothing_is_known_teaches_nothing_of_prompts(
    characters: int, prompt: int
) -> None:
    estimate = TokenEstimate()
    estimate.learn(characters, prompt, 100)
    assert estimate.of(400, 1) == (100 + 1, 0)


def test_same_cost_again_and_again_is_known_in_the_end() -> None:
    estimate = TokenEstimate()
    for _ in range(200):
        estimate.learn(1000, 333, 100)
    tokens, deviation = estimate.of(1000, None)
    assert tokens == 433
    assert deviation == pytest.approx(0, abs=1)


def test_estimate_follows_a_model_that_begins_to_say_more() -> None:
    estimate = TokenEstimate()
    for _ in range(200):
        estimate.learn(1000, 250, 100)
    for _ in range(100):
        estimate.learn(1000, 250, 1000)
    assert estimate.of(1000, None)[0] > 800


@law(100)
@given(
    costs=st.lists(
        st.tuples(st.integers(1, 10_000), st.integers(1, 5000), st.integers(0, 8000)),
        min_size=1,
        max_size=40,
    ),
    characters=st.integers(0, 10_000),
    bound=st.none() | st.integers(0, 9000),
)
def test_estimate_stays_between_what_was_seen_and_its_bounds(
    costs: list[tuple[int, int, int]], characters: int, bound: int | None
) -> None:
    estimate = TokenEstimate()
    for cost in costs:
        estimate.learn(*cost)
    ratios = [0.25, *(prompt / seen for seen, prompt, _ in costs)]
    longest = max(completion for _, _, completion in costs)
    least = characters * min(ratios)
    most = characters * max(ratios) + longest
    if bound is not None:
        most = min(most, characters * max(ratios) + bound)
    tokens, deviation = estimate.of(characters, bound)
    assert least - 1 <= tokens <= max(most, 1) + 1
    assert 0 <= deviation <= longest


@pytest.mark.parametrize("seed", range(5))
def test_sum_of_many_costs_is_within_the_error_of_the_sum_of_their_estimates(seed: int) -> None:
    """Deviations of independent answers add up as squares: two of the sum's are left free."""
    rand, estimate = random.Random(seed), TokenEstimate()

    def request() -> tuple[int, int, int]:
        prompt = rand.randrange(20, 2000)
        return round(prompt * rand.uniform(3, 5)), prompt, round(rand.expovariate(1 / 300))

    for _ in range(500):
        estimate.learn(*request())
    kept, worst = 0, 0.0
    for _ in range(50):
        many = [request() for _ in range(100)]
        guesses = [estimate.of(characters, None) for characters, _, _ in many]
        margin = 2 * sqrt(sum(deviation**2 for _, deviation in guesses))
        costs = sum(prompt + completion for _, prompt, completion in many)
        guessed = sum(tokens for tokens, _ in guesses) + margin
        kept, worst = kept + (costs <= guessed), max(worst, costs / guessed)
        for cost in many:
            estimate.learn(*cost)
    assert kept >= 40
    assert worst < 1.1
