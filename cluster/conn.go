package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
)

// opened is a connection of which the first bytes were read.
type opened struct {
	net.Conn
	first, left []byte
	secure      bool
	state       tls.ConnectionState // if secure
}

func (o *opened) Read(p []byte) (int, error) {
	if len(o.left) > 0 {
		n := copy(p, o.left)
		o.left = o.left[n:]
		return n, nil
	}
	return o.Conn.Read(p)
}

// ConnectionState returns that of a secured connection.
func (o *opened) ConnectionState() tls.ConnectionState { return o.state }

// inbox is a listener whose connections others accepted.
type inbox struct {
	addr  net.Addr
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newInbox(addr net.Addr) *inbox {
	return &inbox{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
}

var errClosed = errors.New("cluster: closed")

func (i *inbox) add(c net.Conn) {
	select {
	case i.conns <- c:
	case <-i.done:
		c.Close()
	}
}

func (i *inbox) Accept() (net.Conn, error) {
	select {
	case c := <-i.conns:
		return c, nil
	case <-i.done:
		return nil, errClosed
	}
}

func (i *inbox) Close() error {
	i.once.Do(func() { close(i.done) })
	return nil
}

func (i *inbox) Addr() net.Addr { return i.addr }

// arrived are the credentials of connections that were secured before gRPC got them.
type arrived struct{}

func (arrived) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	o, ok := c.(*opened)
	if !ok || !o.secure {
		return c, plain{}, nil
	}
	info := credentials.TLSInfo{State: o.state, CommonAuthInfo: credentials.CommonAuthInfo{
		SecurityLevel: credentials.PrivacyAndIntegrity}}
	return c, info, nil
}

func (arrived) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("cluster: these credentials are a server's")
}

func (arrived) Info() credentials.ProtocolInfo            { return credentials.ProtocolInfo{} }
func (a arrived) Clone() credentials.TransportCredentials { return a }
func (arrived) OverrideServerName(string) error           { return nil }

// plain says that a connection is not secured.
type plain struct{}

func (plain) AuthType() string { return "none" }
