#include "cuda/heads.cuh"
#include "cuda/operators.hpp"
#include "cuda/pack_maps.hpp"

void edgedit::cuda::pack(ggml_tensor* node, void* spec, Stream* stream) {
    with_pack_map(ops::tensor(node), *static_cast<const ExchangeSpec*>(spec),
                  [stream](const auto& map, const Work& work) { launch(map, work, stream); });
}
