"""edgedit: diffusion transformers on ggml, over one process or many."""

from __future__ import annotations

from edgedit._lazy import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "AutoencoderKL": "edgedit.models.autoencoder_kl",
        "CLIPTextModel": "edgedit.models.clip",
        "CheckpointError": "edgedit.errors",
        "CollectiveError": "edgedit.errors",
        "CpuBackend": "edgedit.graph.backend",
        "EdgeditError": "edgedit.errors",
        "Executor": "edgedit.graph.executor",
        "FluxTransformer": "edgedit.models.flux",
        "GgmlError": "edgedit.errors",
        "GraphBuilder": "edgedit.graph.builder",
        "ParallelConfig": "edgedit.config",
        "ParallelContext": "edgedit.parallel.context",
        "PartFiles": "edgedit.pipelines.parts",
        "PeerLostError": "edgedit.errors",
        "Pipeline": "edgedit.pipelines.pipeline",
        "Result": "edgedit.pipelines.pipeline",
        "SD3Transformer": "edgedit.models.sd3",
        "T5EncoderModel": "edgedit.models.t5",
        "plan": "edgedit.graph.planner",
    },
)
