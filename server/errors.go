package server

import (
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"

	"grebe/serve"
	"grebe/server/guard"
)

// protocols has the status of an error in HTTP and in gRPC.
type protocols struct {
	http int
	grpc codes.Code
}

var statuses = map[serve.Code]protocols{
	serve.InvalidArgument:  {http.StatusBadRequest, codes.InvalidArgument},
	serve.Unauthenticated:  {http.StatusUnauthorized, codes.Unauthenticated},
	serve.PermissionDenied: {http.StatusForbidden, codes.PermissionDenied},
	serve.NotFound:         {http.StatusNotFound, codes.NotFound},
	serve.MethodNotAllowed: {http.StatusMethodNotAllowed, codes.Unimplemented},
	serve.Conflict:         {http.StatusConflict, codes.FailedPrecondition},
	serve.TooLarge:         {http.StatusRequestEntityTooLarge, codes.OutOfRange},
	serve.WrongMediaType:   {http.StatusUnsupportedMediaType, codes.InvalidArgument},
	serve.Unprocessable:    {http.StatusUnprocessableEntity, codes.FailedPrecondition},
	serve.Exhausted:        {http.StatusTooManyRequests, codes.ResourceExhausted},
	serve.RequestTimeout:   {http.StatusRequestTimeout, codes.Aborted},
	serve.Canceled:         {499, codes.Canceled},
	serve.Internal:         {http.StatusInternalServerError, codes.Internal},
	serve.Unavailable:      {http.StatusServiceUnavailable, codes.Unavailable},
	serve.DeadlineExceeded: {http.StatusGatewayTimeout, codes.DeadlineExceeded},
	serve.NoNode:           {http.StatusServiceUnavailable, codes.Unavailable},
}

// openAIType returns the type that OpenAI's API gives errors of a status.
func openAIType(status int) string {
	switch {
	case status == http.StatusUnauthorized:
		return "authentication_error"
	case status == http.StatusForbidden:
		return "permission_error"
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status >= http.StatusInternalServerError:
		return "server_error"
	}
	return "invalid_request_error"
}

func codeOf(e *serve.Error) serve.Code { return serve.Code(e.Code()) }

// asError turns any error into one that a client may see.
func asError(err error) *serve.Error {
	var denied *guard.DeniedError
	var limit *guard.LimitError
	switch {
	case errors.Is(err, guard.ErrMissing), errors.Is(err, guard.ErrUnknown):
		return serve.Errorf(serve.Unauthenticated, "", "%v", err)
	case errors.As(err, &denied):
		return serve.Errorf(serve.PermissionDenied, "", "%v", denied)
	case errors.As(err, &limit):
		return serve.Later(limit.After, limit.Error())
	}
	return serve.AsError(err)
}
