// The functions of TensorFlow's C API that the core uses, declared here by hand and looked up when the first recording
// starts. So the build needs no TensorFlow header and no TensorFlow library, and one build works with all versions
// whose C API has these functions (tested: 2.18 to 2.21).
// Source: tensorflow/c/{tf_status,tf_tensor,ops,kernels}.h, tensorflow/c/eager/c_api.h,
// tensorflow/c/tf_tstring.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct _object;

namespace tfdbg_arrow {

struct TF_Status;
struct TF_Tensor;
struct TF_OpKernelContext;
struct TF_OpKernelConstruction;
struct TF_OpDefinitionBuilder;
struct TF_KernelBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TFE_TensorHandle;
struct TF_Buffer {
  const void* data;
  size_t length;
  void (*data_deallocator)(void* data, size_t length);
};
// One element of a tensor of strings. TensorFlow defines its layout; its size has not changed since TensorFlow 2.4.
struct TF_TString {
  uint64_t opaque[3];
};
struct TF_StringView {
  const char* data;
  size_t len;
};

// X(return type, name, arguments): from libtensorflow_framework.
#define TFDBG_ARROW_FRAMEWORK_API(X)                                                                        \
  X(TF_Status*, TF_NewStatus, ())                                                                           \
  X(void, TF_DeleteStatus, (TF_Status*))                                                                    \
  X(int, TF_GetCode, (const TF_Status*))                                                                    \
  X(const char*, TF_Message, (const TF_Status*))                                                            \
  X(void, TF_SetStatus, (TF_Status*, int, const char*))                                                     \
  X(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                    \
  X(void, TF_DeleteTensor, (TF_Tensor*))                                                                    \
  X(int, TF_TensorType, (const TF_Tensor*))                                                                 \
  X(int, TF_NumDims, (const TF_Tensor*))                                                                    \
  X(int64_t, TF_Dim, (const TF_Tensor*, int))                                                               \
  X(void*, TF_TensorData, (const TF_Tensor*))                                                               \
  X(size_t, TF_TensorByteSize, (const TF_Tensor*))                                                          \
  X(size_t, TF_DataTypeSize, (int))                                                                         \
  X(TF_Tensor*, TF_AllocateTensor, (int, const int64_t*, int, size_t))                                      \
  X(void, TF_TensorBitcastFrom, (const TF_Tensor*, int, TF_Tensor*, const int64_t*, int, TF_Status*))       \
  X(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char*))                                      \
  X(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                           \
  X(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                            \
  X(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                             \
  X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                                                  \
    (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))                             \
  X(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                   \
  X(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                          \
  X(TF_ShapeHandle*, TF_NewShapeHandle, ())                                                                 \
  X(void, TF_DeleteShapeHandle, (TF_ShapeHandle*))                                                          \
  X(void, TF_ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))  \
  X(void, TF_ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*)) \
  X(void, TF_ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                 \
  X(TF_KernelBuilder*, TF_NewKernelBuilder,                                                                 \
    (const char*, const char*, void* (*)(TF_OpKernelConstruction*), void (*)(void*, TF_OpKernelContext*),   \
     void (*)(void*)))                                                                                      \
  X(void, TF_KernelBuilder_HostMemory, (TF_KernelBuilder*, const char*))                                    \
  X(void, TF_RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                           \
  X(int, TF_NumInputs, (TF_OpKernelContext*))                                                               \
  X(void, TF_GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                 \
  X(void, TF_SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                           \
  X(void, TF_DeleteBuffer, (TF_Buffer*))                                                                    \
  X(void, TF_OpKernelConstruction_GetAttrBool, (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*)) \
  X(int64_t, TF_StepId, (TF_OpKernelContext*))                                                              \
  X(uint64_t, TF_GetFrameId, (TF_OpKernelContext*))                                                         \
  X(int64_t, TF_GetIterId, (TF_OpKernelContext*))                                                           \
  X(TF_StringView, TF_GetDeviceName, (TF_OpKernelContext*))                                                 \
  X(TF_StringView, TF_OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                             \
  X(void, TF_OpKernelConstruction_GetAttrSize,                                                              \
    (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*))                                \
  X(void, TF_OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*)) \
  X(void, TF_OpKernelConstruction_GetAttrInt64List,                                                         \
    (TF_OpKernelConstruction*, const char*, int64_t*, int, TF_Status*))                                     \
  X(void, TF_OpKernelConstruction_GetAttrType, (TF_OpKernelConstruction*, const char*, int*, TF_Status*))   \
  X(void, TF_OpKernelConstruction_GetAttrString, (TF_OpKernelConstruction*, const char*, char*, size_t, TF_Status*)) \
  X(void, TF_OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))

// From libtensorflow_cc: the eager runtime, and the elements of tensors of strings.
#define TFDBG_ARROW_EAGER_API(X)                                                \
  X(TF_Buffer*, TF_GetAllOpList, ())                                            \
  X(int, TFE_TensorHandleDataType, (TFE_TensorHandle*))                         \
  X(const char*, TFE_TensorHandleDeviceName, (TFE_TensorHandle*, TF_Status*))   \
  X(int, TFE_TensorHandleNumDims, (TFE_TensorHandle*, TF_Status*))              \
  X(int64_t, TFE_TensorHandleDim, (TFE_TensorHandle*, int, TF_Status*))         \
  X(TF_Tensor*, TFE_TensorHandleResolve, (TFE_TensorHandle*, TF_Status*))       \
  X(const char*, TF_StringGetDataPointer, (const TF_TString*))                  \
  X(size_t, TF_StringGetSize, (const TF_TString*))

// From TensorFlow's Python bindings: the content of an EagerTensor object. These are C++ functions, so the names are
// mangled.
#define TFDBG_ARROW_PYTHON_API(X)                                                                     \
  X(bool, EagerTensor_CheckExact, (const _object*), "_Z22EagerTensor_CheckExactPK7_object")           \
  X(TFE_TensorHandle*, EagerTensor_Handle, (const _object*), "_Z18EagerTensor_HandlePK7_object")      \
  X(int64_t, PyEagerTensor_ID, (const _object*), "_Z16PyEagerTensor_IDPK7_object")

struct TensorFlowApi {
#define TFDBG_ARROW_DECLARE(result, name, arguments, ...) result(*name) arguments = nullptr;
  TFDBG_ARROW_FRAMEWORK_API(TFDBG_ARROW_DECLARE)
  TFDBG_ARROW_EAGER_API(TFDBG_ARROW_DECLARE)
  TFDBG_ARROW_PYTHON_API(TFDBG_ARROW_DECLARE)
#undef TFDBG_ARROW_DECLARE
};

// Valid after load_tensorflow_api() has returned.
const TensorFlowApi& tf_api();

// Looks up the functions in the libraries with these paths, which TensorFlow has already loaded.
// Throws std::runtime_error that names the library or the missing function.
void load_tensorflow_api(const std::string& framework_path, const std::string& cc_path, const std::string& python_path);

}  // namespace tfdbg_arrow
