package driver

import "reflect"

// cu are the driver's functions; a tag names the version of the interface that is used.
var cu struct {
	init                 symbol `c:"cuInit"`
	driverVersion        symbol `c:"cuDriverGetVersion"`
	errorName            symbol `c:"cuGetErrorName"`
	errorString          symbol `c:"cuGetErrorString"`
	deviceCount          symbol `c:"cuDeviceGetCount"`
	deviceGet            symbol `c:"cuDeviceGet"`
	deviceName           symbol `c:"cuDeviceGetName"`
	deviceUUID           symbol `c:"cuDeviceGetUuid_v2"`
	deviceAttribute      symbol `c:"cuDeviceGetAttribute"`
	deviceMemory         symbol `c:"cuDeviceTotalMem_v2"`
	contextRetain        symbol `c:"cuDevicePrimaryCtxRetain"`
	contextRelease       symbol `c:"cuDevicePrimaryCtxRelease_v2"`
	contextSet           symbol `c:"cuCtxSetCurrent"`
	contextSync          symbol `c:"cuCtxSynchronize"`
	memoryInfo           symbol `c:"cuMemGetInfo_v2"`
	memoryAlloc          symbol `c:"cuMemAlloc_v2"`
	memoryFree           symbol `c:"cuMemFree_v2"`
	hostAlloc            symbol `c:"cuMemHostAlloc"`
	hostFree             symbol `c:"cuMemFreeHost"`
	copyToDevice         symbol `c:"cuMemcpyHtoD_v2"`
	copyToHost           symbol `c:"cuMemcpyDtoH_v2"`
	copyAsync            symbol `c:"cuMemcpyAsync"`
	set8Async            symbol `c:"cuMemsetD8Async"`
	set32Async           symbol `c:"cuMemsetD32Async"`
	streamCreate         symbol `c:"cuStreamCreate"`
	streamCreateUrgent   symbol `c:"cuStreamCreateWithPriority"`
	streamDestroy        symbol `c:"cuStreamDestroy_v2"`
	streamSync           symbol `c:"cuStreamSynchronize"`
	streamWait           symbol `c:"cuStreamWaitEvent"`
	streamBeginCapture   symbol `c:"cuStreamBeginCapture_v2"`
	streamEndCapture     symbol `c:"cuStreamEndCapture"`
	eventCreate          symbol `c:"cuEventCreate"`
	eventDestroy         symbol `c:"cuEventDestroy_v2"`
	eventRecord          symbol `c:"cuEventRecord"`
	eventRecordFlags     symbol `c:"cuEventRecordWithFlags"`
	eventSync            symbol `c:"cuEventSynchronize"`
	eventQuery           symbol `c:"cuEventQuery"`
	eventElapsed         symbol `c:"cuEventElapsedTime"`
	graphInstantiate     symbol `c:"cuGraphInstantiateWithFlags"`
	graphLaunch          symbol `c:"cuGraphLaunch"`
	graphDestroy         symbol `c:"cuGraphDestroy"`
	graphExecDestroy     symbol `c:"cuGraphExecDestroy"`
	moduleLoad           symbol `c:"cuModuleLoadData"`
	moduleUnload         symbol `c:"cuModuleUnload"`
	moduleFunction       symbol `c:"cuModuleGetFunction"`
	functionSet          symbol `c:"cuFuncSetAttribute"`
	functionGet          symbol `c:"cuFuncGetAttribute"`
	occupancy            symbol `c:"cuOccupancyMaxActiveBlocksPerMultiprocessor"`
	launch               symbol `c:"cuLaunchKernelEx"`
	tensorMapEncodeTiled symbol `c:"cuTensorMapEncodeTiled"`
}

// rtc are the run-time compiler's functions.
var rtc struct {
	version     symbol `c:"nvrtcVersion"`
	errorString symbol `c:"nvrtcGetErrorString"`
	create      symbol `c:"nvrtcCreateProgram"`
	destroy     symbol `c:"nvrtcDestroyProgram"`
	compile     symbol `c:"nvrtcCompileProgram"`
	logSize     symbol `c:"nvrtcGetProgramLogSize"`
	log         symbol `c:"nvrtcGetProgramLog"`
	cubinSize   symbol `c:"nvrtcGetCUBINSize"`
	cubin       symbol `c:"nvrtcGetCUBIN"`
}

// lt are the matrix library's functions.
var lt struct {
	version           symbol `c:"cublasLtGetVersion"`
	create            symbol `c:"cublasLtCreate"`
	destroy           symbol `c:"cublasLtDestroy"`
	descCreate        symbol `c:"cublasLtMatmulDescCreate"`
	descDestroy       symbol `c:"cublasLtMatmulDescDestroy"`
	descSet           symbol `c:"cublasLtMatmulDescSetAttribute"`
	layoutCreate      symbol `c:"cublasLtMatrixLayoutCreate"`
	layoutDestroy     symbol `c:"cublasLtMatrixLayoutDestroy"`
	preferenceCreate  symbol `c:"cublasLtMatmulPreferenceCreate"`
	preferenceDestroy symbol `c:"cublasLtMatmulPreferenceDestroy"`
	preferenceSet     symbol `c:"cublasLtMatmulPreferenceSetAttribute"`
	heuristic         symbol `c:"cublasLtMatmulAlgoGetHeuristic"`
	check             symbol `c:"cublasLtMatmulAlgoCheck"`
	matmul            symbol `c:"cublasLtMatmul"`
}

// all lists the symbols of one of the tables above, named after their tags.
func all(table any) []*symbol {
	v := reflect.ValueOf(table).Elem()
	out := make([]*symbol, v.NumField())
	for i := range out {
		out[i] = (*symbol)(v.Field(i).Addr().UnsafePointer())
		out[i].name = v.Type().Field(i).Tag.Get("c")
	}
	return out
}
