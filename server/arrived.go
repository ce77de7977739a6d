package server

import (
	"context"
	"crypto/tls"
	"net"
	"syscall"
	"time"

	"grebe/serve"
)

// connKey finds, in a request's context, the connection that it came on.
type connKey struct{}

// arrived notes when the last byte of a request arrived: its deadline counts from there, what it waited to be read and
// takes to decode included.
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

// mostUnread bounds how long a request is taken to have waited to be read.
const mostUnread = 10 * time.Second
