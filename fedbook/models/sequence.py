"""Networks for text, and how Client2Vec embeds text: samples are rows of character codes, labels
the next character."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedbook.errors import FedbookError
from fedbook.federation import Federation

if TYPE_CHECKING:
    from fedbook.models.clip import ImageTextEncoder

PLAIN = {" ": "space", "\n": "new line"}


def require_text(federation: Federation) -> None:
    x = federation.x
    if x.ndim != 2 or x.is_floating_point() or x.dtype == torch.uint8:
        raise FedbookError(
            f"this is for text, rows of character codes; the samples are {x.dtype} of shape "
            f"{federation.input_shape}",
            "load shakespeare or roles_offline",
        )


class CharLSTM(nn.Module):
    """Characters to an embedding, through stacked LSTMs; z is the last output, the head names the
    next character.
    """

    def __init__(
        self, characters: int, embedding: int = 8, hidden: int = 256, layers: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, characters)

    def embed(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.lstm(self.embedding(x.long()))[0][:, -1]

    def forward(self, x: Tensor, **extra: Tensor) -> Tensor:
        return self.head(self.embed(x, **extra))


def lstm(
    federation: Federation, embedding: int = 8, hidden: int = 256, layers: int = 2
) -> CharLSTM:
    """The network of McMahan et al. 2017 and of LEAF: 8 numbers per character, two LSTMs of 256."""
    require_text(federation)
    return CharLSTM(federation.num_classes, embedding, hidden, layers)


def text_sentence(codes: Tensor, characters: tuple[str, ...]) -> str:
    """ "The next character of {data}" (Client2Vec, appendix D.1)."""
    return "The next character of " + "".join(characters[c] for c in codes.tolist())


def label_sentence(character: str) -> str:
    """ "Character {label}"."""
    return f"Character {PLAIN.get(character, character)}"


def embed_text_federation(
    federation: Federation, encoder: ImageTextEncoder
) -> tuple[Tensor, Tensor]:
    """(D [N, 512] of the samples' sentences, L [classes, 512] of the labels'), D kept like images'
    embeddings.

    Text is compared with text here, so that both go through the sentences' own space, not through
    the pictures'.
    """
    from fedbook.models.cache import CACHE, images_fingerprint, rows_of

    require_text(federation)
    names = federation.class_names
    key = f"text-{images_fingerprint(federation)}-{encoder.fingerprint}-{len(names)}"

    def compute(index: Tensor) -> Tensor:
        return encoder.sentences(
            [text_sentence(row, names) for row in federation.x[index.to(federation.device)]]
        )

    D = CACHE.rows(key, len(federation.x), rows_of(federation), compute)
    L = encoder.sentences([label_sentence(c) for c in names])
    return D.to(federation.device), L.to(federation.device)


BUILDERS: dict[str, Callable[..., nn.Module]] = {"lstm": lstm}
