// A device that is not there: an asynchronous ggml backend on the CPU, for tests of the device executor.
//
// Like a GPU it has memory that the host may not touch, a stream (a thread that works off a queue), events, and no idea
// of GGML_OP_CUSTOM. Every computation is held back for a while, so that whatever is not ordered by events goes wrong.
// It needs ggml's private backend header, which the build takes from the source distribution of ggml-python.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml-impl.h>

#include "executor/fence.hpp"

namespace mock {

using Task = std::function<void()>;
using Lock = std::unique_lock<std::mutex>;

/// A queue of tasks and the thread that runs them one after another.
class Queue {
public:
    ~Queue() {
        push([this] { stopped_ = true; });
        worker_.join();
    }

    void push(Task task) {
        Lock lock(mutex_);
        tasks_.push_back(std::move(task));
        ++pushed_;
        changed_.notify_all();
    }

    void synchronize() {
        Lock lock(mutex_);
        changed_.wait(lock, [this] { return finished_ == pushed_; });
    }

private:
    void work() {
        while (!stopped_) {
            Lock lock(mutex_);
            changed_.wait(lock, [this] { return !tasks_.empty(); });
            const Task task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task();
            lock.lock();
            ++finished_;
            changed_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Task> tasks_;
    std::uint64_t pushed_ = 0, finished_ = 0;
    bool stopped_ = false; // only the worker reads and writes it
    std::thread worker_{[this] { work(); }};
};

/// As a CUDA event: recording notes a point of a queue, and who waits does so for the point noted last.
class Event {
public:
    void record(Queue& queue) {
        const std::uint64_t point = ++recorded_;
        queue.push([this, point] {
            Lock lock(mutex_);
            reached_ = point;
            changed_.notify_all();
        });
    }

    void hold(Queue& queue) {
        queue.push([this, point = recorded_.load()] { synchronize(point); });
    }

    void synchronize() { synchronize(recorded_); }

private:
    void synchronize(std::uint64_t point) {
        Lock lock(mutex_);
        changed_.wait(lock, [&] { return reached_ >= point; });
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<std::uint64_t> recorded_{0};
    std::uint64_t reached_ = 0;
};

/// The device with its one backend. `refused` is an operation that it says it cannot run, besides GGML_OP_CUSTOM.
class Device {
public:
    explicit Device(std::chrono::microseconds delay) : delay_(delay) {
        ggml_backend_cpu_set_n_threads(cpu_, 1);
        describe();
    }

    ~Device() { ggml_backend_free(cpu_); }

    Device(const Device&) = delete;

    ggml_backend_t backend() { return &backend_; }
    ggml_backend_dev_t device() { return &device_; }
    ggml_backend_buffer_type_t memory() { return &memory_; }
    Queue& queue() { return queue_; }

    ggml_op refused = GGML_OP_NONE;
    int num_synchronized = 0;
    int num_computed = 0;

private:
    static Device& of(ggml_backend_t backend) { return *static_cast<Device*>(backend->context); }
    static Device& of(ggml_backend_dev_t device) { return *static_cast<Device*>(device->context); }
    static Event& of(ggml_backend_event_t event) { return *static_cast<Event*>(event->context); }

    void compute(const ggml_cgraph& graph) {
        ++num_computed;
        queue_.push([this, copy = graph]() mutable {
            std::this_thread::sleep_for(delay_);
            ggml_backend_graph_compute(cpu_, &copy);
        });
    }

    void describe() {
        registry_.api_version = GGML_BACKEND_API_VERSION;
        registry_.iface.get_name = [](ggml_backend_reg_t) { return "mock"; };

        memory_.iface.get_name = [](ggml_backend_buffer_type_t) { return "mock"; };
        memory_.iface.alloc_buffer = [](ggml_backend_buffer_type_t type, std::size_t nbytes) {
            ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), nbytes);
            if (buffer != nullptr) buffer->buft = type;
            return buffer;
        };
        memory_.iface.get_alignment = [](ggml_backend_buffer_type_t) -> std::size_t { return 64; };
        memory_.device = &device_;

        device_.reg = &registry_;
        device_.context = this;
        device_.iface.get_name = [](ggml_backend_dev_t) { return "mock0"; };
        device_.iface.get_description = [](ggml_backend_dev_t) { return "asynchronous mock device"; };
        device_.iface.get_type = [](ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; };
        device_.iface.get_buffer_type = [](ggml_backend_dev_t device) { return of(device).memory(); };
        device_.iface.supports_op = [](ggml_backend_dev_t device, const ggml_tensor* node) {
            return node->op != GGML_OP_CUSTOM && node->op != of(device).refused;
        };
        device_.iface.supports_buft = [](ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
            return type == of(device).memory();
        };
        device_.iface.event_new = [](ggml_backend_dev_t device) -> ggml_backend_event_t {
            return new ggml_backend_event{device, new Event};
        };
        device_.iface.event_free = [](ggml_backend_dev_t, ggml_backend_event_t event) {
            delete &of(event);
            delete event;
        };
        device_.iface.event_synchronize = [](ggml_backend_dev_t, ggml_backend_event_t event) { of(event).synchronize(); };

        backend_.device = &device_;
        backend_.context = this;
        backend_.iface.get_name = [](ggml_backend_t) { return "mock"; };
        backend_.iface.synchronize = [](ggml_backend_t backend) {
            ++of(backend).num_synchronized;
            of(backend).queue_.synchronize();
        };
        backend_.iface.graph_compute = [](ggml_backend_t backend, ggml_cgraph* graph) {
            of(backend).compute(*graph);
            return GGML_STATUS_SUCCESS;
        };
        backend_.iface.event_record = [](ggml_backend_t backend, ggml_backend_event_t event) {
            of(event).record(of(backend).queue_);
        };
        backend_.iface.event_wait = [](ggml_backend_t backend, ggml_backend_event_t event) {
            of(event).hold(of(backend).queue_);
        };
    }

    std::chrono::microseconds delay_;
    ggml_backend_t cpu_ = ggml_backend_cpu_init();
    ggml_backend_reg registry_{};
    ggml_backend_device device_{};
    ggml_backend_buffer_type memory_{};
    ggml_backend backend_{};
    Queue queue_;
};

/// The fence of the mock, whose two halves can be left out to see what they are for.
class Fence final : public edgedit::Fence {
public:
    Fence(Device& device, int marks, bool enters = true, bool leaves = true)
        : backend_(device.backend()), enters_(enters), leaves_(leaves), entered_(ggml_backend_event_new(device.device())) {
        for (int mark = 0; mark < marks; ++mark) marks_.push_back(ggml_backend_event_new(device.device()));
    }

    ~Fence() override {
        queue_.synchronize();
        ggml_backend_event_free(entered_);
        for (ggml_backend_event_t event : marks_) ggml_backend_event_free(event);
    }

    edgedit::Stream* stream() override { return reinterpret_cast<edgedit::Stream*>(&queue_); }

    void enter() override {
        ++num_entered;
        if (!enters_) return;
        ggml_backend_event_record(entered_, backend_);
        event(entered_).hold(queue_);
    }

    void record(int mark) override { event(marks_.at(mark)).record(queue_); }

    void leave(int mark) override {
        if (leaves_) ggml_backend_event_wait(backend_, marks_.at(mark));
    }

    void synchronize() { queue_.synchronize(); }

    int num_entered = 0;

private:
    static Event& event(ggml_backend_event_t event) { return *static_cast<Event*>(event->context); }

    ggml_backend_t backend_;
    bool enters_, leaves_;
    ggml_backend_event_t entered_;
    std::vector<ggml_backend_event_t> marks_;
    Queue queue_;
};

} // namespace mock
