package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"grebe/catalog"
	"grebe/catalog/redisusers"
	"grebe/cluster"
	"grebe/cluster/coord"
	"grebe/cluster/coord/embedded"
	"grebe/cluster/coord/etcd"
	"grebe/cluster/coord/kube"
	"grebe/cluster/mtls"
	"grebe/internal/config"
	"grebe/route"
	"grebe/serve"
)

// feedEvents is the number of changes that a store keeps for routers that missed some.
const feedEvents = 1 << 16

// newBoot returns a number that no other start of a store has.
func newBoot() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return max(2, binary.LittleEndian.Uint64(b[:]))
}

// joinCluster makes the process a member of the cluster that the configuration names. It is announced once it can
// answer.
func (a *App) joinCluster(ctx context.Context, cfg *config.Config, sc *serve.Config) error {
	k := &cfg.Cluster
	if k.Name == "" {
		return nil
	}
	node := k.Node
	if node == "" {
		var err error
		if node, err = os.Hostname(); err != nil {
			return fmt.Errorf("cluster.node: %w", err)
		}
	}
	policy, err := routing(k.Routing)
	if err != nil {
		return err
	}
	var id *mtls.Identity
	if k.TLS.Cert != "" {
		if id, err = mtls.Load(mtls.Files{Cert: k.TLS.Cert, Key: k.TLS.Key, CA: k.TLS.CA}, k.Name, node); err != nil {
			return fmt.Errorf("cluster.tls: %w", err)
		}
		a.door.identity = id
	}
	c := cluster.Config{
		Name: k.Name, Node: node, Roles: k.Roles, Zone: k.Zone, Identity: id, Routing: policy,
		NoFetch: k.Fetch == "off", Log: a.log, Registry: a.registry,
		Peer: advertised(k.Advertise, k.Listen, node), API: advertised(k.API, cfg.Listen, node),
	}
	if a.door.guard != nil {
		c.Limits = a.door.guard
	}
	if c.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", k.Listen); err != nil {
		return fmt.Errorf("cluster.listen: %w", err)
	}
	if c.Coordinator, err = a.openCoordinator(ctx, cfg); err != nil {
		c.Listener.Close()
		return fmt.Errorf("cluster.coordinator: %w", err)
	}
	if err = a.findClass(ctx, cfg, c.Coordinator); err == nil {
		for i := range cfg.Models {
			mc := &cfg.Models[i]
			c.Models = append(c.Models, cluster.Model{Name: mc.Name, Group: sharesWith(cfg, mc).Name, Numerics: a.numerics()})
		}
		a.cluster, err = cluster.Open(c)
	}
	if err != nil {
		c.Listener.Close()
		c.Coordinator.Close()
		return err
	}
	a.closers.add(a.cluster.Close)
	sc.Cluster, sc.Node = a.cluster, node
	a.log.Info("this process is a member of a cluster", "cluster", k.Name, "node", node, "peers", c.Peer,
		"secure", id != nil, "routing", k.Routing)
	return nil
}

// openUsers connects to the store of users that the configuration names, if any.
func (a *App) openUsers(cfg *config.Config, sc *serve.Config) {
	k := &cfg.Cluster
	if k.UserAddresses() == nil {
		return
	}
	c := redisusers.Config{Addresses: k.UserAddresses(), Username: k.UsersUsername, Prefix: "grebe:" + k.Name + ":user:"}
	if k.UsersPasswordEnv != "" {
		c.Password = os.Getenv(k.UsersPasswordEnv)
	}
	store := redisusers.Open(c)
	a.closers.add(store.Close)
	a.users = catalog.NewUsers(store, a.catalog)
	sc.Users = a.users
}

// catchUpWithin bounds the time in which a node waits for the catalog of the others before it serves what it has. It is
// for starts while the coordinator is away.
const catchUpWithin = 15 * time.Second

// cutWithin bounds the time in which a starting node has the catalog's log end a version with what came in.
const cutWithin = 2 * time.Second

// takePart starts the process's part in the cluster: first the catalog, which all members share, then requests.
func (a *App) takePart(ctx context.Context, cfg *config.Config) error {
	n, err := a.cluster.Share(a.catalog, a.forgetUsers)
	if err != nil {
		return err
	}
	a.closers.add(func() error { n.Close(); return nil })
	a.inSync = func() []string { return n.State().InSync }
	if err := a.cluster.Start(a.service); err != nil {
		return err
	}
	n.Start()
	began := time.Now()
	if err := a.catchUp(ctx, cfg, n.Await); err != nil {
		return fmt.Errorf("the cluster's catalog: %w", err)
	}
	if err := loadFiles(cfg, a.catalog, a.users, a.log); err != nil {
		if !errors.Is(err, catalog.ErrUnavailable) && !errors.Is(err, catalog.ErrUncertain) &&
			!errors.Is(err, catalog.ErrUsers) {
			return err
		}
		a.log.Warn("files of items and users were not loaded: restart this process to load them", "error", err)
	}
	if err := a.meet(ctx, max(time.Second, catchUpWithin-time.Since(began)), a.cluster.Await); err != nil {
		return err
	}
	if a.keeper != nil { // models generate what came in, before the first request
		within, cancel := context.WithTimeout(ctx, cutWithin)
		a.keeper.CatchUp(within)
		cancel()
	}
	a.cluster.Ready()
	return nil
}

// meet waits until the process knows the members and the maps of items, and can serve its feed. Readiness means that.
// It gives up after a time: a coordinator that is away must not keep processes from serving.
func (a *App) meet(ctx context.Context, within time.Duration, await func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := await(bounded); err != nil && ctx.Err() == nil {
		a.log.Warn("the coordinator has not sent the members and maps yet: this process serves without them")
		return nil
	}
	return ctx.Err()
}

// catchUp waits for the other members' catalog, and until the KV of users who were deleted there is gone. It returns an
// error if this process has another catalog.
func (a *App) catchUp(ctx context.Context, cfg *config.Config, await func(context.Context) error) error {
	within, cancel := context.WithTimeout(ctx, catchUpWithin)
	defer cancel()
	err := await(within)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		if !keepsKV(cfg) {
			a.log.Warn("the other members' catalog cannot be read: this process serves its own copy")
			a.closers.run(func(ctx context.Context) { a.leaveRefused(ctx, await) })
			return nil
		}
		a.log.Warn("waiting for the other members' catalog: users may have been deleted there whose KV is on this disk")
		err = await(ctx)
	}
	if err != nil {
		return err
	}
	return a.service.Settle(ctx)
}

// leaveRefused gets no more requests from others if it turns out that this process has another catalog than they.
func (a *App) leaveRefused(ctx context.Context, await func(context.Context) error) {
	if err := await(ctx); err != nil && ctx.Err() == nil {
		a.log.Error("this process gets no more requests from the cluster", "error", err)
		a.cluster.Leave()
	}
}

// keepsKV reports whether a model has room for KV on disk.
func keepsKV(cfg *config.Config) bool {
	for i := range cfg.Models {
		if bytes, _ := diskOf(cfg, &cfg.Models[i]); bytes > 0 && cfg.Holds() {
			return true
		}
	}
	return false
}

// forgetUsers removes the KV of all users. Some may have been deleted while this process was away, and are not known
// any more.
func (a *App) forgetUsers() {
	if err := a.service.ForgetUsers(); err != nil {
		a.log.Error("KV of users who may have been deleted could not be removed", "error", err)
	}
}

// openCoordinator connects to Kubernetes or etcd, or runs etcd here.
func (a *App) openCoordinator(ctx context.Context, cfg *config.Config) (coord.Coordinator, error) {
	k := &cfg.Cluster
	if k.OnKubernetes() {
		o, err := kube.Parse(k.Coordinator, k.Name)
		if err != nil {
			return nil, err
		}
		o.Log = a.log
		return kube.Open(o)
	}
	root := "/grebe/v1/" + k.Name + "/"
	if k.Coordinator != "embedded" {
		endpoints, err := etcd.ParseURL(k.Coordinator)
		if err != nil {
			return nil, err
		}
		secure, err := etcdTLS(k)
		if err != nil {
			return nil, err
		}
		return etcd.Open(etcd.Options{Endpoints: endpoints, Root: root, TLS: secure})
	}
	s, err := embedded.Start(ctx, embedded.Options{
		Dir: filepath.Join(cfg.DataDir, "etcd"), Listen: k.Etcd, Cert: k.TLS.Cert, Key: k.TLS.Key, CA: k.TLS.CA, Log: a.log,
	})
	if err != nil {
		return nil, err
	}
	a.closers.add(func() error { s.Close(); return nil })
	secure, err := etcdTLS(k)
	if err != nil {
		return nil, err
	}
	return etcd.Open(etcd.Options{Endpoints: []string{s.Addr()}, Root: root, TLS: secure})
}

// etcdTLS returns how to connect to etcd: with the member's certificate if it has one.
func etcdTLS(k *config.Cluster) (*tls.Config, error) {
	if k.TLS.Cert == "" {
		return nil, nil
	}
	return mtls.Plain(mtls.Files{Cert: k.TLS.Cert, Key: k.TLS.Key, CA: k.TLS.CA})
}

// routing returns the policy of a name in the configuration.
func routing(name string) (route.Policy, error) {
	if name == "emb-kv" {
		return route.Joint, nil
	}
	return route.ParsePolicy(name)
}

// advertised returns the address under which others reach a listener: as configured, or the listener's own. Where it
// listens on all addresses, the host's name stands in.
func advertised(given, listen, node string) string {
	if given != "" {
		return given
	}
	host, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		name, err := os.Hostname()
		if err != nil {
			name = node
		}
		return net.JoinHostPort(name, port)
	}
	return listen
}

// numerics names the class of devices that compute the same bits as this one: the CPU's level or the GPU's kind. The
// number of threads does not matter.
func (a *App) numerics() string {
	if a.class != "" {
		return a.class
	}
	name, _, _ := strings.Cut(a.device.Name(), ",")
	return strings.TrimSuffix(strings.NewReplacer(" (", "/", " ", "-").Replace(name), ")")
}
