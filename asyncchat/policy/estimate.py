"""How many tokens a request will cost: guessed before, learned from what earlier ones cost.

Not here: counting characters, a tokenizer. One estimate per model: models differ in their tokens and in how much they say.
"""

__all__ = ["TokenEstimate"]

_CHARACTERS_PER_TOKEN = 4.0
_FIRST_COMPLETION = 256.0  # before an answer has been seen
_WEIGHT = 0.02  # of the newest sample in a running mean


class TokenEstimate:
    """What a request to one model may cost, in tokens."""

    __slots__ = ("_completion", "_deviation", "_per_character", "_samples")

    def __init__(self) -> None:
        self._per_character = 1 / _CHARACTERS_PER_TOKEN
        self._completion = _FIRST_COMPLETION
        self._deviation = 0.0
        self._samples = 0

    def of(self, characters: int, bound: int | None, answers: int = 1) -> tuple[int, float]:
        """Return what a request is likely to cost, and by how much that may be wrong.

        Args:
            characters: of its messages and tools.
            bound: the tokens that one answer may have, where the request says so.
            answers: how many are asked for.
        """
        completion, deviation = self._completion, self._deviation
        if bound is not None and (completion > bound or not self._samples):
            completion = float(bound)
        if bound is not None:
            deviation = min(deviation, bound - completion)
        tokens = max(round(characters * self._per_character + completion * answers), 1)
        return tokens, deviation * answers

    def learn(self, characters: int, prompt: int, completion: int, answers: int = 1) -> None:
        """Note what a request has cost: tokens of its prompt, and of its answers together."""
        said = completion / max(answers, 1)
        self._samples += 1
        weight = max(_WEIGHT, 1 / self._samples)
        if characters > 0 and prompt > 0:
            self._per_character += weight * (prompt / characters - self._per_character)
        off = abs(said - self._completion) if self._samples > 1 else said / 2
        self._deviation += weight * (off - self._deviation)
        self._completion += weight * (said - self._completion)
