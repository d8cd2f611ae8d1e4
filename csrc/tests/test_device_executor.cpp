// The device executor on a mock device: every order that a plan asks for is kept by events alone, with no wait of the
// host; and with either half of a fence left out the results are wrong, so that the mock does tell the difference.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "executor/device_executor.hpp"
#include "mock_device.hpp"

using edgedit::DeviceError;
using edgedit::DeviceExecutor;
using edgedit::Step;
using Kind = Step::Kind;

namespace {

constexpr int kCount = 64;
constexpr int kRounds = 4;
// Ours read at once and write late, later than the backend computes: a missing fence of either direction shows.
constexpr std::chrono::microseconds kSegmentDelay{1000};
constexpr std::chrono::microseconds kLaunchDelay{4000};

void unused_callback(ggml_tensor*, int, int, void*) {}

/// Stands in for operators and collectives alike: the node becomes its source in reverse, plus the number at `state`.
void reverse(ggml_tensor* node, void* state, edgedit::Stream* stream) {
    reinterpret_cast<mock::Queue*>(stream)->push([node, offset = *static_cast<float*>(state)] {
        const auto* from = static_cast<const float*>(node->src[0]->data);
        const std::vector<float> read(from, from + kCount);
        std::this_thread::sleep_for(kLaunchDelay);
        auto* to = static_cast<float*>(node->data);
        for (int i = 0; i < kCount; ++i) to[i] = read[kCount - 1 - i] + offset;
    });
}

/// Rounds of two operators and two collectives whose flights overlap each other and independent compute. All tensors
/// share one allocator, as in a real plan, so memory is used again as early as ggml thinks it safe.
class Program {
public:
    explicit Program(mock::Device& device) : device_(device) {
        context_ = ggml_init({256 * ggml_tensor_overhead() + ggml_graph_overhead_custom(256, false), nullptr, true});
        leaves_ = ggml_init({4 * ggml_tensor_overhead(), nullptr, true});
        input_ = ggml_new_tensor_1d(leaves_, GGML_TYPE_F32, kCount);
        leaf_buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(leaves_, device.memory());
        graph_ = ggml_new_graph_custom(context_, 256, false);
        build();
        allocator_ = ggml_gallocr_new(device.memory());
        CHECK(ggml_gallocr_alloc_graph(allocator_, graph_), "no memory");
        for (const auto& [begin, end] : ranges_) views_.push_back(ggml_graph_view(graph_, begin, end));
        auto view = views_.begin();
        for (Step& step : steps_) {
            if (step.kind == Kind::segment) step.graph = &*view++;
        }
    }

    ~Program() {
        ggml_gallocr_free(allocator_);
        ggml_backend_buffer_free(leaf_buffer_);
        ggml_free(leaves_);
        ggml_free(context_);
    }

    const std::vector<Step>& steps() const { return steps_; }

    void set_input(const std::vector<float>& values) {
        ggml_backend_tensor_set(input_, values.data(), 0, sizeof(float) * kCount);
    }

    std::vector<float> output() const {
        std::vector<float> values(kCount);
        ggml_backend_tensor_get(output_, values.data(), 0, sizeof(float) * kCount);
        return values;
    }

    /// What the program computes, said without ggml.
    static std::vector<float> oracle(std::vector<float> x) {
        for (int round = 0; round < kRounds; ++round) {
            std::vector<float> next(kCount);
            for (int i = 0; i < kCount; ++i) {
                const float at = x[i], mirrored = x[kCount - 1 - i];
                const float packed = mirrored + 1, again = at + 2;     // the operators
                const float first = at + 11, second = mirrored + 12;   // the collectives over packed and again
                next[i] = 0.25f * first + 0.125f * second + (0.25f * at + 0.5f * packed - 0.25f * again);
            }
            x = next;
        }
        return x;
    }

private:
    void build() {
        ggml_tensor* x = ggml_scale(context_, input_, 1.0f);
        for (int round = 0; round < kRounds; ++round) {
            ggml_tensor* packed = ours(Kind::operation, x, 0, one_);
            ggml_tensor* again = ours(Kind::operation, packed, 0, one_);
            ggml_tensor* first = ours(Kind::start, packed, 2 * round, ten_);
            ggml_tensor* second = ours(Kind::start, again, 2 * round + 1, ten_);
            ggml_tensor* compute = ggml_add(context_, ggml_scale(context_, x, 0.25f), ggml_scale(context_, packed, 0.5f));
            compute = ggml_sub(context_, compute, ggml_scale(context_, again, 0.25f));
            expand(compute);
            first = wait(first, packed, 2 * round);
            second = wait(second, again, 2 * round + 1);
            ggml_tensor* sum = ggml_add(context_, ggml_scale(context_, first, 0.25f), ggml_scale(context_, second, 0.125f));
            x = ggml_add(context_, sum, compute);
        }
        ggml_set_output(output_ = x);
        expand(x);
        end_segment();
    }

    ggml_tensor* ours(Kind kind, ggml_tensor* source, int flight, float& state) {
        expand(source);
        end_segment();
        ggml_tensor* node = ggml_custom_4d(context_, GGML_TYPE_F32, kCount, 1, 1, 1, &source, 1, unused_callback, 1, nullptr);
        add(node, {kind, nullptr, node, reverse, &state, flight});
        return node;
    }

    ggml_tensor* wait(ggml_tensor* start, ggml_tensor* send, int flight) {
        end_segment();
        ggml_tensor* node = ggml_custom_inplace(context_, start, &send, 1, unused_callback, 1, nullptr);
        add(node, {Kind::wait, nullptr, node, nullptr, nullptr, flight});
        return node;
    }

    void expand(ggml_tensor* node) { ggml_build_forward_expand(graph_, node); }

    void add(ggml_tensor* node, const Step& step) {
        expand(node);
        steps_.push_back(step);
        begin_ = ggml_graph_n_nodes(graph_);
    }

    void end_segment() {
        const int end = ggml_graph_n_nodes(graph_);
        if (begin_ == end) return;
        ranges_.emplace_back(begin_, end);
        steps_.push_back({Kind::segment, nullptr, nullptr, nullptr, nullptr, 0});
        begin_ = end;
    }

    mock::Device& device_;
    ggml_context *context_, *leaves_;
    ggml_tensor *input_, *output_ = nullptr;
    ggml_backend_buffer_t leaf_buffer_;
    ggml_cgraph* graph_;
    ggml_gallocr_t allocator_;
    std::vector<ggml_cgraph> views_;
    std::vector<std::pair<int, int>> ranges_;
    std::vector<Step> steps_;
    int begin_ = 0;
    float one_ = 1, ten_ = 10;
};

std::vector<float> numbers(int seed) {
    std::vector<float> values(kCount);
    for (int i = 0; i < kCount; ++i) values[i] = std::sin(static_cast<float>(7 * i + 100 * seed));
    return values;
}

float distance(const std::vector<float>& a, const std::vector<float>& b) {
    float largest = 0;
    for (int i = 0; i < kCount; ++i) {
        const float difference = std::fabs(a[i] - b[i]);
        if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
    }
    return largest;
}

/// Largest error over some runs of one plan, each with other inputs, on fences of which either half may be missing.
float error_with(bool enters, bool leaves) {
    mock::Device device(kSegmentDelay);
    Program program(device);
    mock::Fence operators(device, 1, enters, leaves), collectives(device, 2 * kRounds, enters, leaves);
    DeviceExecutor executor(device.backend(), operators, collectives, program.steps());
    float error = 0;
    for (int run = 0; run < 3; ++run) {
        program.set_input(numbers(run));
        executor.run();
        device.queue().synchronize();
        operators.synchronize(); // without fences our streams may still be at work
        collectives.synchronize();
        error = std::max(error, distance(program.output(), Program::oracle(numbers(run))));
    }
    CHECK(device.num_synchronized == 0, "the executor synchronised %d times", device.num_synchronized);
    CHECK(operators.num_entered == 3 * kRounds, "%d fences for %d pairs of operators", operators.num_entered, 3 * kRounds);
    return error;
}

void fences_keep_the_order() {
    const float error = error_with(true, true);
    CHECK(error < 1e-5f, "error %g", error);
}

void a_missing_fence_is_seen() {
    for (const auto& [enters, leaves] : {std::pair{false, true}, {true, false}, {false, false}}) {
        const float error = error_with(enters, leaves);
        CHECK(error > 1e-2f, "right without %s: the mock would not notice a missing fence (error %g)",
              enters ? "leave" : "enter", error);
    }
}

/// The device may not even begin before run() has returned: a wait of the host would never end.
void run_returns_before_the_device_works() {
    mock::Device device(kSegmentDelay);
    Program program(device);
    mock::Fence operators(device, 1), collectives(device, 2 * kRounds);
    DeviceExecutor executor(device.backend(), operators, collectives, program.steps());
    program.set_input(numbers(5));
    std::promise<void> gate;
    device.queue().push([opened = gate.get_future().share()] { opened.wait(); });
    executor.run();
    gate.set_value();
    ggml_backend_synchronize(device.backend());
    const float error = distance(program.output(), Program::oracle(numbers(5)));
    CHECK(error < 1e-5f, "error %g after synchronising with the backend alone", error);
}

std::string refusal(mock::Device& device, const std::vector<Step>& steps) {
    mock::Fence operators(device, 1), collectives(device, 2 * kRounds);
    try {
        DeviceExecutor(device.backend(), operators, collectives, steps);
    } catch (const DeviceError& error) {
        return error.what();
    }
    return "";
}

void plans_that_cannot_run_are_refused() {
    mock::Device device(kSegmentDelay);
    Program program(device);
    CHECK(refusal(device, program.steps()).empty(), "refused a good plan");

    device.refused = GGML_OP_SUB;
    const std::string unsupported = refusal(device, program.steps());
    CHECK(unsupported.find("mock cannot run node") != std::string::npos && unsupported.find("SUB") != std::string::npos,
          "message: %s", unsupported.c_str());
    device.refused = GGML_OP_NONE;

    std::vector<Step> steps = program.steps();
    for (Step& step : steps) {
        if (step.kind == Kind::wait) step.flight += 1;
    }
    CHECK(refusal(device, steps).find("collective 2 is waited for before its start") != std::string::npos, "message: %s",
          refusal(device, steps).c_str());
    while (steps.back().kind != Kind::start) steps.pop_back();
    steps.erase(steps.begin(), steps.end() - 1);
    CHECK(refusal(device, steps).find("has no wait") != std::string::npos, "message: %s", refusal(device, steps).c_str());
    steps[0].launch = nullptr;
    CHECK(refusal(device, steps).find("nothing to launch") != std::string::npos, "message: %s", refusal(device, steps).c_str());

    mock::Device other(kSegmentDelay); // its memory is not the first device's
    CHECK(refusal(other, program.steps()).find("cannot read") != std::string::npos, "message: %s",
          refusal(other, program.steps()).c_str());
}

} // namespace

int main() {
    fences_keep_the_order();
    a_missing_fence_is_seen();
    run_returns_before_the_device_works();
    plans_that_cannot_run_are_refused();
    std::printf("the device executor keeps the order by events alone\n");
    return 0;
}
