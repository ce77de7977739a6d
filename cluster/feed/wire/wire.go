// Package wire carries residency feeds over gRPC. Package feed decides everything, this one waits and sends.
//
// The server has no queue: the feed's ring is the queue of all followers, and a session sends the next events when the
// last message is gone. A follower that cannot keep up, or takes nothing for a second, is cut off and starts over. So
// memory does not depend on followers. The client keeps one connection to a node, and opens another one at most a
// second after the last one broke.
//
// Both sides take gRPC credentials or options from their caller, who provides mTLS.
package wire
