#include "cuda/heads.cuh"
#include "cuda/operators.hpp"
#include "cuda/receive_maps.hpp"

void edgedit::cuda::receive(ggml_tensor* node, void* spec, Stream* stream) {
    with_receive_map(ops::tensor(node), *static_cast<const ExchangeSpec*>(spec),
                     [stream](const auto& map, const Work& work) { launch(map, work, stream); });
}
