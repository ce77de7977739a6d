package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"grebe/dispatch"
	"grebe/engine"
	"grebe/internal/wire"
)

// Code is the kind of an error, as clients see it.
type Code string

// Codes of errors. Package server maps them to statuses of HTTP and gRPC. The comments are the text of
// docs/reference/errors.md.
const (
	// the request is wrong as it stands: field says where, message says what to send
	InvalidArgument Code = "invalid_argument"
	Unauthenticated Code = "unauthenticated" // the server wants an API key and the request has none that it knows
	// the key lacks the role for this call, or a page of another site sent the request
	PermissionDenied Code = "permission_denied"
	NotFound         Code = "not_found"          // no such path, item, user, version or model
	MethodNotAllowed Code = "method_not_allowed" // the path exists and takes another method: see the header Allow
	// the call contradicts another one under way, or what is there: read again, then retry
	Conflict Code = "conflict"
	// the body or a part of it is above a limit: see limits in the configuration
	TooLarge Code = "too_large"
	// the body has a Content-Type or an encoding that the call does not take
	WrongMediaType Code = "unsupported_media_type"
	Unprocessable  Code = "unprocessable" // the request is well formed, but this model or catalog cannot do it
	// too much at once, over a key's limit, or predicted to miss its deadline: retry after Retry-After
	Exhausted      Code = "resource_exhausted"
	RequestTimeout Code = "request_timeout" // the body came too slowly: send it again
	Canceled       Code = "canceled"        // the client went away before the answer
	Internal       Code = "internal"        // a fault of the server: its log has the request_id
	// not ready, stopping, or what the call needs cannot be reached: retry
	Unavailable Code = "unavailable"
	// the deadline passed before the request was computed: ask for less, or allow more time with deadline_ms
	DeadlineExceeded Code = "deadline_exceeded"
	// no node of the cluster can answer for this model: see grebe cluster status
	NoNode Code = "no_node"
)

// Error is an error that a client may see.
type Error struct {
	code    Code
	field   string // path in the request, or empty
	problem string
	after   time.Duration // when to retry; 0: soon
	cause   error         // engine.ErrNoMemory, or nil
}

// Unwrap returns what a caller in this process treats in its own way, or nil.
func (e *Error) Unwrap() error { return e.cause }

func (e *Error) Error() string {
	if e.field == "" {
		return e.problem
	}
	return e.field + ": " + e.problem
}

// at returns the same error about another field.
func (e *Error) at(field string) *Error {
	out := *e
	out.field = field
	return &out
}

// Code returns the error's kind, such as "invalid_argument".
func (e *Error) Code() string { return string(e.code) }

// Field returns the path of the field in question, or "".
func (e *Error) Field() string { return e.field }

// Problem returns the error without the field.
func (e *Error) Problem() string { return e.problem }

// Restored makes an error of another process again.
func Restored(c Code, field, problem string, after time.Duration) *Error {
	return &Error{code: c, field: field, problem: problem, after: after}
}

// After returns when to retry; 0: soon.
func (e *Error) After() time.Duration { return e.after }

// Errorf makes an error about a field, which may be empty.
func Errorf(c Code, field, format string, args ...any) *Error {
	return &Error{code: c, field: field, problem: fmt.Sprintf(format, args...)}
}

// Later makes an Exhausted error that tells the client to retry after a time.
func Later(after time.Duration, problem string) *Error {
	return &Error{code: Exhausted, problem: problem, after: after}
}

// AsError turns any error into one that a client may see. Unknown errors become internal errors without their text.
func AsError(err error) *Error {
	var own *Error
	var bad *wire.Error
	var shed *dispatch.ShedError
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &bad):
		return Errorf(InvalidArgument, bad.Field, "%s", bad.Problem)
	case errors.Is(err, dispatch.ErrQueueFull):
		return Errorf(Exhausted, "", "the queue is full")
	case errors.As(err, &shed):
		return Later(shed.After, "the request is predicted to miss its deadline")
	case errors.Is(err, dispatch.ErrShed):
		return Errorf(Exhausted, "", "the request is predicted to miss its deadline")
	case errors.Is(err, dispatch.ErrExpired), errors.Is(err, context.DeadlineExceeded):
		return Errorf(DeadlineExceeded, "", "the deadline passed before the request was computed")
	case errors.Is(err, engine.ErrTooLarge):
		return Errorf(TooLarge, "", "%s", strings.TrimPrefix(err.Error(), "engine: "))
	case errors.Is(err, engine.ErrLost):
		return Errorf(Unavailable, "", "the device is lost and being opened again")
	case errors.Is(err, engine.ErrNoMemory):
		e := Errorf(Unavailable, "", "the device has no memory left for the request: ask again later, or for less")
		e.cause = engine.ErrNoMemory
		return e
	case errors.Is(err, engine.ErrClosed):
		return Errorf(Unavailable, "", "the model is shutting down")
	case errors.Is(err, context.Canceled):
		return Errorf(Canceled, "", "the client went away")
	}
	return Errorf(Internal, "", "internal error")
}

// ownFault returns err if the server is at fault and not the request, else nil.
func ownFault(err error) error {
	if err == nil {
		return nil
	}
	switch AsError(err).code {
	case Internal, Unavailable, DeadlineExceeded:
		return err
	}
	return nil
}
