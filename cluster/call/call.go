// Package call carries requests from one member of a cluster to another, and the answers back.
//
// A client has one connection to a member. Requests share it: each has a number, and answers come in any order. Whoever
// asks writes the request itself, and the server answers each request in a goroutine of its own. So a request wakes
// four goroutines, and needs two system calls on each side. That is why this is not gRPC, which takes about twice as
// long.
//
// A request carries the time that is left of its deadline and the caller's trace. If the caller gives up, the server
// is notified. If the connection breaks, all requests on it fail with ErrGone, and their contexts on the server end.
//
// A connection begins with Preface. Frames follow, which FORMAT.md describes.
package call

import (
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
)

// Preface begins a connection: three letters and the version of the protocol.
const Preface = "grq\x01"

// ErrGone says that a member cannot be reached, or that the connection broke. The request may have been carried out.
var ErrGone = errors.New("call: the member does not answer")

// MaxMessage bounds the bytes of a request or an answer.
const MaxMessage = 64 << 20

// mostOpen bounds the requests of a connection that a server answers at a time. More wait in the connection.
const mostOpen = 1024

// Request is a request as a server gets it.
type Request struct {
	Op            byte          // what is asked for
	Left          time.Duration // until its deadline
	Parent, State string        // of the caller's trace, as in W3C's headers; empty: none
	Body          []byte        // message
}

// Answer is what a server answers.
type Answer struct {
	Failed  bool          // the body describes an error
	Took    time.Duration // time that the server took
	Backlog time.Duration // predicted time until the server's queue is empty; negative: not known
	Body    []byte        // message, as a client gets it
	Message proto.Message // as a server gives it, unless it failed
}
