package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"grebe/dispatch"
	"grebe/engine"
	"grebe/internal/wire"
	"grebe/server/guard"
)

// code is a kind of error, as clients see it.
type code struct {
	name   string
	status int
	grpc   codes.Code
}

var (
	invalidArgument  = code{"invalid_argument", http.StatusBadRequest, codes.InvalidArgument}
	unauthenticated  = code{"unauthenticated", http.StatusUnauthorized, codes.Unauthenticated}
	permissionDenied = code{"permission_denied", http.StatusForbidden, codes.PermissionDenied}
	notFound         = code{"not_found", http.StatusNotFound, codes.NotFound}
	methodNotAllowed = code{"method_not_allowed", http.StatusMethodNotAllowed, codes.Unimplemented}
	conflict         = code{"conflict", http.StatusConflict, codes.FailedPrecondition}
	tooLarge         = code{"too_large", http.StatusRequestEntityTooLarge, codes.OutOfRange}
	wrongMediaType   = code{"unsupported_media_type", http.StatusUnsupportedMediaType, codes.InvalidArgument}
	unprocessable    = code{"unprocessable", http.StatusUnprocessableEntity, codes.FailedPrecondition}
	exhausted        = code{"resource_exhausted", http.StatusTooManyRequests, codes.ResourceExhausted}
	requestTimeout   = code{"request_timeout", http.StatusRequestTimeout, codes.Aborted}
	canceled         = code{"canceled", 499, codes.Canceled}
	internal         = code{"internal", http.StatusInternalServerError, codes.Internal}
	unavailable      = code{"unavailable", http.StatusServiceUnavailable, codes.Unavailable}
	deadlineExceeded = code{"deadline_exceeded", http.StatusGatewayTimeout, codes.DeadlineExceeded}
)

// Error is an error that a client may see.
type Error struct {
	code    code
	field   string // path in the request, or empty
	problem string
	after   time.Duration // when to ask again; 0: soon
}

func (e *Error) Error() string {
	if e.field == "" {
		return e.problem
	}
	return e.field + ": " + e.problem
}

// Code returns the error's kind, such as "invalid_argument".
func (e *Error) Code() string { return e.code.name }

// Field returns the path of the field in question, or "".
func (e *Error) Field() string { return e.field }

// errorf makes an error about a field; field may be empty.
func errorf(c code, field, format string, args ...any) *Error {
	return &Error{code: c, field: field, problem: fmt.Sprintf(format, args...)}
}

// asError turns any error into one that a client may see. Unknown ones become internal errors
// without a text of their own.
func asError(err error) *Error {
	var own *Error
	var bad *wire.Error
	var denied *guard.DeniedError
	var limit *guard.LimitError
	var shed *dispatch.ShedError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &bad):
		return errorf(invalidArgument, bad.Field, "%s", bad.Problem)
	case errors.Is(err, guard.ErrMissing), errors.Is(err, guard.ErrUnknown):
		return errorf(unauthenticated, "", "%v", err)
	case errors.As(err, &denied):
		return errorf(permissionDenied, "", "%v", denied)
	case errors.As(err, &limit):
		return &Error{code: exhausted, problem: limit.Error(), after: limit.After}
	case errors.Is(err, dispatch.ErrQueueFull):
		return errorf(exhausted, "", "the queue is full")
	case errors.As(err, &shed):
		return &Error{code: exhausted, problem: "the request is predicted to miss its deadline", after: shed.After}
	case errors.Is(err, dispatch.ErrShed):
		return errorf(exhausted, "", "the request is predicted to miss its deadline")
	case errors.Is(err, dispatch.ErrExpired), errors.Is(err, context.DeadlineExceeded):
		return errorf(deadlineExceeded, "", "the deadline passed before the request was computed")
	case errors.Is(err, engine.ErrTooLarge):
		return errorf(tooLarge, "", "%s", strings.TrimPrefix(err.Error(), "engine: "))
	case errors.Is(err, engine.ErrLost):
		return errorf(unavailable, "", "the device is lost and being opened again")
	case errors.Is(err, engine.ErrClosed):
		return errorf(unavailable, "", "the model is shutting down")
	case errors.Is(err, context.Canceled):
		return errorf(canceled, "", "the client went away")
	}
	return errorf(internal, "", "internal error")
}
