"""The operations of `GraphBuilder`, by kind. Every method checks shapes before ggml can abort."""
