"""Kernels that move bytes between ranks are communication whoever wrote them: by name, in each kind of trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from importers.kineto_files import device, launch, step, write
from importers.nsys_exports import MS, Export
from importers.read_back import load as load_export

import stashtrace
from stashtrace.schema.kinds import CollectiveOp as Op
from stashtrace.schema.kinds import DeviceWork

#: As profilers print them, and what they do.
TALKS = {
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long,"
    " unsigned int**, unsigned long, unsigned long)": Op.ALL_REDUCE,
    "void <unnamed>::multimem_all_reduce_kernel<c10::BFloat16, (int)16>(T1 *, unsigned long)": Op.ALL_REDUCE,
    "void c10d::symmetric_memory::(anonymous namespace)::one_shot_all_reduce_kernel"
    "<float, 16, 8>(float**)": Op.ALL_REDUCE,
    "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>"
    "(c10::BFloat16**)": Op.ALL_REDUCE,
    "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*)": Op.ALL_GATHER,
    "void (anonymous namespace)::multimem_one_shot_reduce_kernel<float, 16>(float*, float*)": Op.REDUCE,
    "multimem_all_reduce_kernel": Op.ALL_REDUCE,
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)": Op.ALL_REDUCE,
    "void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*)": Op.ALL_REDUCE,
    "void aiter::cross_device_reduce_2stage_naive<opus::bf16_t, 8, false>(aiter::RankData*)": Op.ALL_REDUCE,
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::"
    "trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>(int)": Op.ALL_REDUCE,
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)4,"
    " __nv_bfloat16>(int)": Op.ALL_REDUCE,
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<2>(int)": Op.ALL_REDUCE,
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)": Op.ALL_TO_ALL,
    "void primus_turbo::deep_ep::internode::combine<true, 8>(int4*)": Op.ALL_TO_ALL,
    "void deep_ep::intranode::cached_notify_combine<(int)8>(void **, int *)": Op.BARRIER,
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*, float*)": Op.OTHER,
    "c10d::nvshmem_extension::allToAllV_2d(void*, void*)": Op.ALL_TO_ALL,
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)": Op.BARRIER,
}
#: Names that only mention communication, or say it of work on one device.
OTHERS = (
    "triton_poi_fused_add_all_reduce_wait_tensor_3",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(int const*)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp<float>)",
    "void gemm<cross_device_reduce_1stage>(vllm::RankData*)",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<int>(multimem_all_reduce)",
    "void moe_combine_kernel<float>(float*)",
)


def _kineto(path: Path, name: str) -> stashtrace.Trace:
    events = [step(1, 0, 990), step(2, 1000, 990)]
    for at in (0, 1000):
        events += [launch(at + 1, at + 10), launch(at + 2, at + 20), device("gemm", at + 30, 100, correlation=at + 1)]
        events.append(device(name, at + 200, 300, correlation=at + 2))
    return stashtrace.load(write(path, events, distributedInfo={"backend": "nccl", "rank": 0, "world_size": 2}))


@pytest.mark.parametrize("name", TALKS, ids=range(len(TALKS)))
def test_kineto_takes_it_for_communication(tmp_path: Path, name: str) -> None:
    trace = _kineto(tmp_path / "rank0.json", name)
    kernels = trace.kernels
    assert kernels["work_code"].tolist() == [DeviceWork.KERNEL, DeviceWork.COMMUNICATION] * 2
    assert trace.text(kernels["name_code"][1]) == name
    assert kernels["launch_ns"].tolist() == [10_000, 20_000, 1_010_000, 1_020_000]
    assert trace.collectives["op_code"].tolist() == [TALKS[name]] * 2
    exposed = stashtrace.analyze(trace, "stalls", by="rank")
    links = exposed.take((exposed["kind"] == "interconnect") | (exposed["kind"] == "network"))
    assert int(links["stall_ns"].sum()) == 2 * 300_000
    assert int(links["low_ns"].sum()) == 0, "rank 1 left no record"


@pytest.mark.parametrize("name", OTHERS, ids=range(len(OTHERS)))
def test_kineto_takes_others_for_compute(tmp_path: Path, name: str) -> None:
    trace = _kineto(tmp_path / "rank0.json", name)
    assert set(trace.kernels["work_code"].tolist()) == {DeviceWork.KERNEL}
    assert not len(trace.collectives)


def test_nsight_takes_them_for_communication(tmp_path: Path) -> None:
    export = Export(tmp_path / "report.sqlite")
    for number, name in enumerate([*TALKS, *OTHERS]):
        export.kernel(40, name, number * MS, number * MS + MS // 2, device=0, stream=7)
    trace = load_export(export.close())
    talks, others = int(DeviceWork.COMMUNICATION), int(DeviceWork.KERNEL)
    assert trace.kernels["work_code"].tolist() == [talks] * len(TALKS) + [others] * len(OTHERS)
    ops = dict(zip(trace.collectives["begin_ns"].tolist(), trace.collectives["op_code"].tolist(), strict=True))
    assert [ops[begin] for begin in sorted(ops)] == list(TALKS.values())
