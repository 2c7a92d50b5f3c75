/* A SavedModel run through TensorFlow's C API, with buffers that stay where they are from call to call. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorflow/c/c_api.h>

enum { SAME_FORMS = 0, OTHER_FORMS = 1, FAILED = 2, MOST_DIMENSIONS = 16 };

typedef struct { /* where the caller wants an output, and of which form */
  int rank;
  int64_t dimensions[MOST_DIMENSIONS];
  void* data;
} Room;

typedef struct {
  TF_Status* status;
  TF_Graph* graph;
  TF_Session* session;
  int inputs, outputs;
  TF_Output* fed;
  TF_Output* fetched;
  TF_Tensor** given;
  TF_Tensor** made;
  Room* rooms;
} Net;

static int tell(const char* what, char* why, size_t room) {
  snprintf(why, room, "%s", what);
  return 0;
}

static void forget(Net* net) {
  for (int i = 0; i < net->outputs; ++i) {
    if (net->made[i] != NULL) TF_DeleteTensor(net->made[i]);
    net->made[i] = NULL;
  }
}

void tfperf_close(Net* net) {
  if (net->session != NULL) {
    TF_CloseSession(net->session, net->status);
    TF_DeleteSession(net->session, net->status);
  }
  for (int i = 0; i < net->inputs; ++i)
    if (net->given[i] != NULL) TF_DeleteTensor(net->given[i]);
  forget(net);
  TF_DeleteGraph(net->graph);
  TF_DeleteStatus(net->status);
  free(net->fed);
  free(net->fetched);
  free(net->given);
  free(net->made);
  free(net->rooms);
  free(net);
}

static int find(Net* net, const char* const* operations, const int* indices, int number, TF_Output* found, char* why,
                size_t room) {
  for (int i = 0; i < number; ++i) {
    found[i].oper = TF_GraphOperationByName(net->graph, operations[i]);
    found[i].index = indices[i];
    if (found[i].oper == NULL) return tell(operations[i], why, room);
  }
  return 1;
}

/* Loads a SavedModel; NULL: it cannot, and `why` says so.
   operations, indices: of the tensors that are fed, then of those that are fetched. config: a ConfigProto. */
Net* tfperf_open(const char* folder, const void* config, size_t config_size, int inputs, int outputs,
                 const char* const* operations, const int* indices, char* why, size_t room) {
  Net* net = calloc(1, sizeof(Net));
  net->inputs = inputs;
  net->outputs = outputs;
  net->fed = calloc((size_t)inputs + 1, sizeof(TF_Output));
  net->fetched = calloc((size_t)outputs + 1, sizeof(TF_Output));
  net->given = calloc((size_t)inputs + 1, sizeof(TF_Tensor*));
  net->made = calloc((size_t)outputs + 1, sizeof(TF_Tensor*));
  net->rooms = calloc((size_t)outputs + 1, sizeof(Room));
  net->status = TF_NewStatus();
  net->graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  TF_SetConfig(options, config, config_size, net->status);
  if (TF_GetCode(net->status) == TF_OK) {
    const char* tags[] = {"serve"};
    net->session = TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1, net->graph, NULL, net->status);
  }
  TF_DeleteSessionOptions(options);
  const int loaded = TF_GetCode(net->status) == TF_OK || tell(TF_Message(net->status), why, room);
  if (loaded && find(net, operations, indices, inputs, net->fed, why, room) &&
      find(net, operations + inputs, indices + inputs, outputs, net->fetched, why, room))
    return net;
  tfperf_close(net);
  return NULL;
}

/* Where an input of this form is to be written before each run; NULL: there is no memory for it. */
void* tfperf_input(Net* net, int input, int type, const int64_t* dimensions, int rank) {
  size_t size = TF_DataTypeSize((TF_DataType)type);
  for (int i = 0; i < rank; ++i) size *= (size_t)dimensions[i];
  if (net->given[input] != NULL) TF_DeleteTensor(net->given[input]);
  net->given[input] = TF_AllocateTensor((TF_DataType)type, dimensions, rank, size);
  return net->given[input] == NULL ? NULL : TF_TensorData(net->given[input]);
}

static int fits(const Room* room, const TF_Tensor* tensor) {
  if (room->data == NULL || TF_NumDims(tensor) != room->rank) return 0;
  for (int i = 0; i < room->rank; ++i)
    if (TF_Dim(tensor, i) != room->dimensions[i]) return 0;
  return 1;
}

/* SAME_FORMS: the outputs are where `tfperf_take` put them before; OTHER_FORMS: they wait to be taken. */
int tfperf_run(Net* net) {
  forget(net);
  TF_SessionRun(net->session, NULL, net->fed, net->given, net->inputs, net->fetched, net->made, net->outputs, NULL, 0,
                NULL, net->status);
  if (TF_GetCode(net->status) != TF_OK) return FAILED;
  for (int i = 0; i < net->outputs; ++i)
    if (!fits(&net->rooms[i], net->made[i])) return OTHER_FORMS;
  for (int i = 0; i < net->outputs; ++i)
    memcpy(net->rooms[i].data, TF_TensorData(net->made[i]), TF_TensorByteSize(net->made[i]));
  forget(net);
  return SAME_FORMS;
}

/* The number of dimensions of an output that waits; -1: more than there is room for. */
int tfperf_rank(const Net* net, int output) {
  const int rank = TF_NumDims(net->made[output]);
  return rank > MOST_DIMENSIONS ? -1 : rank;
}

int64_t tfperf_size(const Net* net, int output, int dimension) { return TF_Dim(net->made[output], dimension); }

/* Copies an output that waits, and those of its form in later runs, to where the caller has room for it. */
void tfperf_take(Net* net, int output, void* data) {
  Room* room = &net->rooms[output];
  const TF_Tensor* tensor = net->made[output];
  room->rank = TF_NumDims(tensor);
  for (int i = 0; i < room->rank; ++i) room->dimensions[i] = TF_Dim(tensor, i);
  room->data = data;
  memcpy(data, TF_TensorData(tensor), TF_TensorByteSize(tensor));
}

/* Why the last run failed. */
const char* tfperf_why(const Net* net) { return TF_Message(net->status); }
