"""The rolled CountSketch: a gradient of D coordinates in K numbers that keep its inner products.

One letter per axis: B gradients at once, D coordinates of all trainable parameters, n of one parameter,
K sketch dimensions, m coordinates per chunk.

CountSketch (Charikar, Chen & Farach-Colton 2002) sends each coordinate to a random bucket with a random
sign. Scattering by a hashed index is slow; here the flat gradient of each parameter is cut into chunks of m
coordinates, and chunk k lands as one piece: coordinate c of the chunk goes to bucket (o_k + c) mod K with
sign ρ_k T[τ_k + c], where T is one table of random signs. Memory is read and written in order.

Two coordinates of one chunk never share a bucket, two of different chunks do with probability 1/K. So
<sketch(x), sketch(y)> has mean <x, y>, and variance at most (|x|²|y|² + <x, y>²)/K, times 1 + m/L because
two chunks whose pieces of T (length L + m) happen to line up share their signs.
"""

from collections.abc import Mapping
from hashlib import shake_256
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

# L / m. Aligned chunks then add 1/64 to the variance at worst.
TABLE_CHUNKS = 64


class Layout(NamedTuple):
    """Where the chunks of one parameter go: lists of one entry per chunk."""

    bucket: list[int]  # o_k, uniform in [0, K)
    table: list[int]  # τ_k, uniform in [0, L)
    sign: list[int]  # ρ_k, -1 or 1


class Sketch:
    """A linear map from gradients to K numbers, fixed by the seed and the parameters' names.

    Results are the same for any batch size, any split of the rows into pieces, and any device, up to the
    order in which floats are added. Nothing is drawn from a global generator.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        dimensions: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Draw the layout.

        Args:
            sizes: number of elements of each parameter, in order. Tied parameters appear once.
            dimensions: K, at least 1.
            seed: any integer. Different seeds give independent sketches.
            device: where the rows will be.

        Raises:
            ValueError: no parameters, an empty parameter, or K < 1.
        """
        if dimensions < 1:
            raise ValueError(f"a sketch needs at least 1 dimension, not {dimensions}")
        if not sizes:
            raise ValueError("a sketch needs at least one parameter, and there is none (all frozen?)")
        empty = [name for name, size in sizes.items() if size < 1]
        if empty:
            raise ValueError(f"these parameters have no elements: {', '.join(empty)}")
        self.sizes = dict(sizes)
        self.dimensions = dimensions
        self.seed = seed
        # m = K, the most that keeps a chunk free of collisions, has the fewest calls. On one core, 128
        # gradients of 100 thousand coordinates to K = 4,096: 3 ms (2.5 times a sum of the array); m = K/4
        # 6 ms, K/16 12 ms.
        self.chunk = dimensions
        self.table = _signs(seed, (TABLE_CHUNKS + 1) * self.chunk).to(device)
        self._layouts = {name: self._layout(name, size) for name, size in self.sizes.items()}

    @classmethod
    def for_model(cls, model: nn.Module, dimensions: int, seed: int) -> Self:
        """The sketch of all trainable parameters of a model, tied ones once, on the model's device."""
        parameters = trainable_parameters(model)
        device = next(iter(parameters.values())).device if parameters else "cpu"
        return cls({name: p.numel() for name, p in parameters.items()}, dimensions, seed, device)

    def _layout(self, name: str, size: int) -> Layout:
        chunks = -(-size // self.chunk)
        draws = _words(f"chunks/{self.seed}/{name}", 3 * chunks).reshape(3, chunks)
        # The remainder of a 64-bit word is uniform to within K/2^64.
        bucket = draws[0] % np.uint64(self.dimensions)
        table = draws[1] % np.uint64(TABLE_CHUNKS * self.chunk)
        sign = 1 - 2 * (draws[2] % np.uint64(2)).astype(np.int64)
        return Layout(bucket.tolist(), table.tolist(), sign.tolist())

    def accumulator(self, batch: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Zeros, shape (B, K + m): what `add` writes to. Buckets past K wrap round in `fold`."""
        return torch.zeros(batch, self.dimensions + self.chunk, dtype=dtype, device=self.table.device)

    def add(self, accumulator: Tensor, name: str, rows: Tensor, start: int = 0) -> None:
        """Add pieces of the flat gradients of one parameter, in place.

        Args:
            accumulator: (B, K + m), or a slice of its first axis.
            name: the parameter.
            rows: (B, n), coordinates start … start + n − 1 of that parameter's flat gradient.
            start: any coordinate, also in the middle of a chunk.

        Raises:
            KeyError: the sketch doesn't know the parameter.
            ValueError: the rows reach outside the parameter.
        """
        end = start + rows.shape[1]
        if start < 0 or end > self.sizes[name]:
            raise ValueError(
                f"{name} has {self.sizes[name]} coordinates; rows for {start} … {end - 1} reach outside it"
            )
        m, (buckets, tables, signs) = self.chunk, self._layouts[name]
        rows = rows.to(accumulator.dtype)
        low = start
        while low < end:
            k, c = divmod(low, m)
            high = min(end, low - c + m)
            bucket, table, length = buckets[k] + c, tables[k] + c, high - low
            accumulator[:, bucket : bucket + length].addcmul_(
                rows[:, low - start : high - start], self.table[table : table + length], value=signs[k]
            )
            low = high

    def fold(self, accumulator: Tensor) -> Tensor:
        """The sketches, shape (B, K), of what was added to an accumulator, which stays as it is."""
        sketch = accumulator[:, : self.dimensions].clone()
        sketch[:, : self.chunk] += accumulator[:, self.dimensions :]
        return sketch

    def dense(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """The sketch, shape (K,), float32 (or float64 where a gradient is), of one whole gradient.

        Args:
            gradients: the gradient of every parameter of the sketch, in the parameter's own shape.

        Raises:
            ValueError: a parameter is missing, unknown, or of another size.
        """
        if gradients.keys() != self.sizes.keys():
            odd = sorted(gradients.keys() ^ self.sizes.keys())
            raise ValueError(f"gradient and sketch differ in their parameters: {', '.join(odd)}")
        dtype = torch.float32
        for name, gradient in gradients.items():
            if gradient.numel() != self.sizes[name]:
                raise ValueError(
                    f"{name} has {self.sizes[name]} coordinates, its gradient {gradient.numel()}"
                )
            dtype = torch.promote_types(dtype, gradient.dtype)
        accumulator = self.accumulator(1, dtype)
        for name, gradient in gradients.items():
            self.add(accumulator, name, gradient.reshape(1, -1))
        return self.fold(accumulator)[0]


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name, in the model's order, tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


# Randomness comes from SHAKE-256 of a label, not from a seeded generator: torch's CPU generator keeps 32 bits
# of its seed, generators with neighbouring seeds may share streams, and numpy may change its streams between
# versions, which would silently invalidate sketches on disk.


def _words(label: str, count: int) -> np.ndarray:
    return np.frombuffer(shake_256(label.encode()).digest(8 * count), dtype="<u8")


def _signs(seed: int, count: int) -> Tensor:
    bits = np.unpackbits(np.frombuffer(shake_256(f"table/{seed}".encode()).digest(-(-count // 8)), np.uint8))
    return torch.from_numpy(1 - 2 * bits[:count].astype(np.float32))
