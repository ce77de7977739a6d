package server

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"
	"time"

	"grebe/serve"
)

// connKey is the key of a request's connection in its context.
type connKey struct{}

// arrived stores in the context when the last byte of the request arrived. The deadline counts from then, so it
// includes the time in the kernel and the time to decode.
func arrived(ctx context.Context) context.Context {
	at := time.Now()
	conn, _ := ctx.Value(connKey{}).(net.Conn)
	switch c := conn.(type) {
	case *tls.Conn:
		conn = c.NetConn()
	case *framedConn:
		conn = c.Conn
	}
	if c, ok := conn.(syscall.Conn); ok {
		at = at.Add(-min(sinceData(c), mostUnread))
	}
	return serve.Arrived(ctx, at)
}

// mostUnread bounds the time that a request is assumed to have waited in the kernel.
const mostUnread = 10 * time.Second
