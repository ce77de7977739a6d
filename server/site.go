package server

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"grebe/serve"
)

// site decides which hosts a listener answers for and which web pages may call it. It protects servers without keys
// from web pages in the browsers of people who can reach them: from cross-site requests that write, and from host
// names that an attacker points at this machine (DNS rebinding).
type site struct {
	hosts []string // in lower case, without ports; "*": any
}

func newSite(hosts []string) site {
	var s site
	for _, h := range hosts {
		s.hosts = append(s.hosts, strings.TrimSuffix(strings.ToLower(h), "."))
	}
	return s
}

// arrival describes where a request was sent to and where it comes from.
type arrival struct {
	host   string              // Host header or :authority
	local  net.Addr            // of the connection; nil: unknown
	name   string              // server name of the TLS handshake, which browsers compare with the certificate
	header func(string) string // by lower-case name
	read   bool                // GET or HEAD
	public bool                // pages of other sites may link to it
}

// check returns an error for a request that a page of another site may have sent.
func (s *site) check(a *arrival) error {
	if !s.knows(a) {
		return serve.Errorf(serve.PermissionDenied, "", "this server does not answer for the host %s: add it to hosts in "+
			"the configuration, or set auth.keys",
			serve.Quoted(a.host))
	}
	if s.foreign(a) {
		return serve.Errorf(serve.PermissionDenied, "", "a web page of another site sent this request: add its host to "+
			"hosts in the configuration to allow it")
	}
	return nil
}

// knows reports whether the request's host is loopback, the address that the client connected to, the name in its TLS
// handshake, or configured. Browsers use TCP, so other connections pass.
func (s *site) knows(a *arrival) bool {
	local, tcp := a.local.(*net.TCPAddr)
	if a.host == "" || a.local != nil && !tcp {
		return true
	}
	host := hostOnly(a.host)
	if s.configured(host) || host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		a.name != "" && host == strings.ToLower(a.name) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	ip = ip.Unmap().WithZone("")
	return ip.IsLoopback() || tcp && ip == local.AddrPort().Addr().Unmap().WithZone("")
}

func (s *site) configured(host string) bool {
	return slices.Contains(s.hosts, host) || slices.Contains(s.hosts, "*")
}

// foreign reports whether a page of another origin sent the request. Programs other than browsers send neither
// header. A browser may follow a link from another site to public pages.
func (s *site) foreign(a *arrival) bool {
	from := a.header("sec-fetch-site")
	if from == "same-origin" || from == "none" {
		return false
	}
	if a.public && a.read && a.header("sec-fetch-mode") == "navigate" {
		return false
	}
	origin := a.header("origin")
	if origin == "" {
		return from != ""
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return true
	}
	if s.configured(hostOnly(u.Host)) {
		return false
	}
	return from != "" || !strings.EqualFold(u.Host, a.host)
}

// hostOnly returns a host without its port, in lower case.
func hostOnly(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// screened refuses requests that pages of other sites may have sent. With keys the API listener skips this, because a
// page has no key; the admin listener never does. Health checks always pass.
func (s *Server) screened(next http.Handler, always bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rt, _ := findRoute(r.URL)
		if rt.op == "health" || strings.HasPrefix(r.URL.Path, healthPrefix) || !always && !s.guard.Open() {
			next.ServeHTTP(w, r)
			return
		}
		a := arrival{host: r.Host, header: r.Header.Get, read: r.Method == http.MethodGet ||
			r.Method == http.MethodHead, public: !always}
		a.local, _ = r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if r.TLS != nil {
			a.name = r.TLS.ServerName
		}
		err := s.site.check(&a)
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
		case isGRPC(r):
			turnAway(w, codes.PermissionDenied, err)
		default:
			s.metrics.answered(rt.op, s.write(w, r, reply{}, err), 0)
		}
	})
}

// screenCall is screened for the gRPC listener.
func (s *Server) screenCall(ctx context.Context, md metadata.MD) error {
	if !s.guard.Open() {
		return nil
	}
	first := func(name string) string {
		if v := md.Get(name); len(v) > 0 {
			return v[0]
		}
		return ""
	}
	a := arrival{host: first(":authority"), header: first}
	if p, ok := peer.FromContext(ctx); ok {
		a.local = p.LocalAddr
		if secure, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			a.name = secure.State.ServerName
		}
	}
	if err := s.site.check(&a); err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return nil
}
