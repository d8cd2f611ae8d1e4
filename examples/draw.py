"""Draw a picture: `python examples/draw.py`, or on two ranks: `mpirun -n 2 python examples/draw.py --ulysses 2`."""

import sys

from edgedit import ParallelConfig, Pipeline

ulysses = int(sys.argv[sys.argv.index("--ulysses") + 1]) if "--ulysses" in sys.argv else 1
with Pipeline.from_pretrained("embedded", parallel=ParallelConfig.from_env(ulysses_degree=ulysses)) as pipe:
    result = pipe("a red apple", num_inference_steps=20, seed=0)
if result.images:  # on world rank 0
    result.images[0].save("apple.png")
    print(f"apple.png, seed {result.seed}, {result.timings['denoising_s']:.2f} s")
