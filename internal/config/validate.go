package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// FieldError is a complaint about the value at a path.
type FieldError struct {
	Path string
	Msg  string
}

func (e *FieldError) Error() string { return e.Path + ": " + e.Msg }

type problems []error

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, &FieldError{Path: path, Msg: fmt.Sprintf(format, args...)})
}

func (p *problems) oneOf(path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		p.add(path, "%q: want one of %s", value, strings.Join(allowed, ", "))
	}
}

func (p *problems) between(path string, v, low, high int) {
	if v < low || v > high {
		p.add(path, "%d is not between %d and %d", v, low, high)
	}
}

// Validate checks the configuration by itself: whether files exist is for those who open them.
func (c *Config) Validate() error {
	var p problems
	c.validateAddresses(&p)
	if _, _, err := c.NoDevice(); err != nil {
		p.add("device", "%v", err)
	} else if !strings.HasPrefix(c.Device, "none:") {
		p.oneOf("device", c.Device, "auto", "cpu", "cuda", "none")
	}
	p.between("threads", c.Threads, 0, 1024)
	p.between("slo_ms", c.SLOMillis, 1, 3_600_000)
	p.oneOf("schedule.policy", c.Schedule.Policy, policies...)
	p.between("workers", c.Workers, 1, 1024)
	p.between("engine.max_tokens", c.Engine.MaxTokens, 1, 1<<20)
	p.between("engine.queue", c.Engine.Queue, 1, 1<<20)
	p.between("limits.in_flight", c.Limits.InFlight, 1, 1<<20)
	p.between("limits.deadline_ms", c.Limits.DeadlineMillis, 1, 3_600_000)
	p.between("limits.shutdown_ms", c.Limits.ShutdownMillis, 1, 3_600_000)
	p.between("limits.drain_ms", c.Limits.DrainMillis, 0, 3_600_000)
	p.between("catalog.versions", c.Catalog.Versions, 1, 1000)
	if c.SLOMillis > c.Limits.DeadlineMillis {
		p.add("slo_ms", "%d is more than limits.deadline_ms, %d", c.SLOMillis, c.Limits.DeadlineMillis)
	}
	if c.Limits.Body.Percent > 0 || c.Limits.Body.Bytes < 1<<10 {
		p.add("limits.body", "%s: want a size of at least 1KiB", c.Limits.Body)
	}
	if c.Cache.Disk.Percent > 0 {
		p.add("cache.disk", "%s: want a size such as 8GiB, not a share", c.Cache.Disk)
	}
	p.oneOf("cache.boundary", c.Cache.Boundary, "climb", "fixed")
	p.oneOf("cache.device_boundary", c.Cache.DeviceBoundary, "climb", "fixed")
	p.oneOf("cache.policy", c.Cache.Policy, "default", "lru", "laru", "sieve")
	if c.Reload.Warm.Bytes != 0 || c.Reload.Warm.Percent > 100 {
		p.add("reload.warm", "%s: want a share of up to 100%%", c.Reload.Warm)
	}
	// a week: no more than can be counted in nanoseconds
	p.between("reload.trial_ms", c.Reload.TrialMillis, 0, 604_800_000)
	if c.Tracing.Sample.Bytes != 0 || c.Tracing.Sample.Percent > 100 {
		p.add("tracing.sample", "%s: want a share of up to 100%%", c.Tracing.Sample)
	}
	if e := c.Tracing.Endpoint; e != "" {
		if u, err := url.Parse(e); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			p.add("tracing.endpoint", "%q is not an address: write one such as http://localhost:4318/v1/traces", e)
		}
	}
	p.oneOf("cache.ahead", c.Cache.Ahead, "on", "off")
	p.oneOf("dashboard.user_ids", c.Dashboard.UserIDs, "hidden", "shown")
	if c.DataDir == "" {
		p.add("data_dir", "is empty")
	}
	switch t := &c.TLS; {
	case (t.Cert == "") != (t.Key == ""):
		p.add("tls", "give both cert and key")
	case t.ClientCA != "" && t.Cert == "":
		p.add("tls.client_ca", "clients can show a certificate only where cert and key are given too")
	}
	c.validateModels(&p)
	c.validateTables(&p)
	c.validateCluster(&p)
	return errors.Join(p...)
}

func (c *Config) validateAddresses(p *problems) {
	used := map[string]string{}
	for _, a := range []struct {
		path, addr string
		optional   bool
	}{{"listen", c.Listen, false}, {"admin_listen", c.AdminListen, true}, {"grpc_listen", c.GRPCListen, true}} {
		if a.addr == "" && a.optional {
			continue
		}
		_, port, err := net.SplitHostPort(a.addr)
		if err != nil || port == "" {
			p.add(a.path, "%q is not an address: write HOST:PORT, such as 127.0.0.1:8080", a.addr)
			continue
		}
		if other, taken := used[a.addr]; taken && port != "0" {
			p.add(a.path, "%s is the address of %s already", a.addr, other)
		}
		used[a.addr] = a.path
	}
	for i, h := range c.Hosts {
		if h == "" || strings.ContainsAny(h, "/ \t") || strings.Contains(h, ":") && net.ParseIP(h) == nil {
			p.add(fmt.Sprintf("hosts[%d]", i), "%q is not a host: write a name such as grebe.example, without scheme and port",
				h)
		}
	}
}

func (c *Config) validateModels(p *problems) {
	if len(c.Models) == 0 {
		p.add("models", "no model: give a Hugging Face folder as models[0].path, or try `grebe demo`")
	}
	names := map[string]int{}
	for i := range c.Models {
		m, path := &c.Models[i], fmt.Sprintf("models[%d]", i)
		for _, e := range flatten(m.Validate()) {
			var f *FieldError
			if errors.As(e, &f) {
				p.add(path+"."+f.Path, "%s", f.Msg)
			}
		}
		if j, taken := names[m.Name]; taken && m.Name != "" {
			p.add(path+".name", "%q is the name of models[%d] already", m.Name, j)
		}
		names[m.Name] = i
		if m.ItemTable != "" && !slices.ContainsFunc(c.Tables, func(t Table) bool { return t.Name == m.ItemTable }) {
			p.add(path+".item_table", "%q is not among tables", m.ItemTable)
		}
		for k, mt := range m.Tables {
			at := fmt.Sprintf("%s.tables[%d]", path, k)
			if !slices.ContainsFunc(c.Tables, func(t Table) bool { return t.Name == mt.Table }) {
				p.add(at+".table", "%q is not among tables", mt.Table)
			}
			if mt.Name == "" || slices.ContainsFunc(m.Tables[:k], func(o ModelTable) bool { return o.Name == mt.Name }) {
				p.add(at+".name", "%q: want the name of a table of the model, each once", mt.Name)
			}
		}
	}
}

func (m *Model) validateKeep(p *problems) {
	if len(m.WeightsKeep) > 0 && m.Weights != "int8" && m.Weights != "fp8" {
		p.add("weights_keep", "is for weights: int8 or fp8, but weights is %s", m.Weights)
	}
	for i, text := range m.WeightsKeep {
		_, err := regexp.Compile(text)
		switch {
		case err != nil:
			p.add(fmt.Sprintf("weights_keep[%d]", i), "%v", err)
		case text == "":
			p.add(fmt.Sprintf("weights_keep[%d]", i), "is empty, which matches all matrices")
		case text == KeepAuto && len(m.WeightsKeep) > 1:
			p.add("weights_keep", "auto stands alone: a calibration chooses all")
		}
	}
}

// Validate checks one model by itself.
func (m *Model) Validate() error {
	var p problems
	if m.Path == "" {
		p.add("path", "is missing: give the checkpoint's folder")
	}
	if strings.ContainsAny(m.Name, "/:") || m.Name == "." || m.Name == ".." {
		p.add("name", "%q: / and : have a meaning in addresses, as dots alone do", m.Name)
	}
	p.oneOf("dtype", m.DType, "auto", "f32", "bf16")
	p.oneOf("kv_dtype", m.KVDType, "auto", "f32", "bf16", "fp8")
	p.oneOf("weights", m.Weights, "auto", "bf16", "int8", "fp8")
	m.validateKeep(&p)
	p.oneOf("prompt.history", m.Prompt.History, "text", "codes", "identifier")
	if m.Prompt.History != "text" && m.Prompt.HistoryItem != "{text}" {
		p.add("prompt.history_item", "is for history: text, but history is %s", m.Prompt.History)
	}
	p.oneOf("scoring.kind", m.Scoring.Kind, "identifier", "pointwise")
	switch yes, no := !m.Scoring.Yes.IsZero(), !m.Scoring.No.IsZero(); {
	case m.Scoring.Kind == "pointwise" && !(yes && no):
		p.add("scoring", `pointwise scoring needs the two answers: {kind: pointwise, "yes": "yes", "no": "no"}`)
	case m.Scoring.Kind == "pointwise" && m.Scoring.Yes == m.Scoring.No:
		p.add("scoring", "yes and no are both %s", m.Scoring.Yes)
	case m.Scoring.Kind == "identifier" && (yes || no):
		p.add("scoring", "yes and no belong to kind: pointwise, but kind is identifier")
	}
	m.validatePrefix(&p)
	m.validateCodes(&p)
	for name, share := range map[string]float64{"blend.items": m.Blend.Items, "blend.history": m.Blend.History} {
		if !(share >= 0 && share <= 1) {
			p.add(name, "%v: want a share from 0 to 1", share)
		}
	}
	p.oneOf("blend.first", m.Blend.First, "user", "item")
	if m.Blend.Layers < 1 {
		p.add("blend.layers", "%d: want 1 or more", m.Blend.Layers)
	}
	if m.Blend.Window < 0 {
		p.add("blend.window", "%d: want 0 or more tokens", m.Blend.Window)
	}
	if d := m.Blend.DriftLimit; !(d > 0 && d <= 1) {
		p.add("blend.drift_limit", "%v: want more than 0, up to 1; prototypes: false takes none", d)
	}
	if m.Blend.Auto && m.KVDType == "fp8" {
		p.add("blend.auto", "KV in fp8 cannot be moved to other positions: want kv_dtype auto, f32 or bf16")
	}
	if !m.DeviceRows.IsZero() && m.ItemTable == "" {
		p.add("device_rows", "caches rows of item_table, which is not set")
	}
	if m.DeviceRows.Percent > 90 {
		p.add("device_rows", "%s: want at most 90%% of device_memory, because KV needs the rest", m.DeviceRows)
	}
	share := m.DeviceRows.Percent
	for i := range m.Tables {
		share += m.Tables[i].DeviceRows.Percent
	}
	if share > 90 && len(m.Tables) > 0 {
		p.add("tables", "device_rows of all tables are %v%%: want at most 90%% of device_memory, KV needs the rest", share)
	}
	if m.Disk.Percent > 0 {
		p.add("disk", "%s: want a size such as 8GiB, not a share", m.Disk)
	}
	return errors.Join(p...)
}

// policies are those of prefix=auto.
var policies = []string{"predicted", "bat", "longer", "user", "item", "none"}

// validatePrefix also refuses a policy that names an order which is not among the orders.
func (m *Model) validatePrefix(p *problems) {
	if m.Prefix.Policy != "" {
		p.oneOf("prefix.policy", m.Prefix.Policy, policies...)
	}
	for i, o := range m.Prefix.Orders {
		p.oneOf(fmt.Sprintf("prefix.orders[%d]", i), o, "user", "item")
		if slices.Contains(m.Prefix.Orders[:i], o) {
			p.add(fmt.Sprintf("prefix.orders[%d]", i), "%s is given twice", o)
		}
	}
	if want := orderOf(m.Prefix.Policy); want != "" && len(m.Prefix.Orders) > 0 &&
		!slices.Contains(m.Prefix.Orders, want) {
		p.add("prefix", "policy %s puts the %s first, which orders do not have", m.Prefix.Policy, want)
	}
}

// orderOf is the one order that a policy takes; "" where it chooses.
func orderOf(policy string) string {
	switch policy {
	case "user", "none":
		return "user"
	case "item":
		return "item"
	}
	return ""
}

// PrefixOf returns what prefix=auto means for a model, and the orders that it may choose. A model that lists no orders
// has both, or with pointwise scoring the user first alone: there a model reads what it was trained on, one prompt per
// candidate, and the other order was measurably worse. A policy that names an order has that one.
func (c *Config) PrefixOf(m *Model) (policy string, orders []string) {
	policy, orders = cmp.Or(m.Prefix.Policy, c.Schedule.Policy), m.Prefix.Orders
	fixed := orderOf(policy)
	switch {
	case fixed != "" && (len(orders) == 0 || slices.Contains(orders, fixed)):
		return policy, []string{fixed}
	case fixed != "": // the schedule's policy, which the model's orders go before
		return orders[0], orders
	case len(orders) > 0:
		return policy, orders
	case m.Scoring.Kind == "pointwise":
		return policy, []string{"user"}
	}
	return policy, []string{"user", "item"}
}

// CannotRank reports whether a model of texts refuses all rankings: scoring by identifier needs an instruction. A model
// with codes may be there to recommend only.
func (m *Model) CannotRank() bool {
	i := &m.Prompt.Instruction
	return m.Scoring.Kind != "pointwise" && !m.HasCodes() && i.Text == "" && len(i.Tokens) == 0
}

// AsksNothing reports whether a model scores each item by itself, but neither an instruction nor the text behind an
// item asks for it.
func (m *Model) AsksNothing() bool {
	i := &m.Prompt.Instruction
	return m.Scoring.Kind == "pointwise" && i.Text == "" && len(i.Tokens) == 0 &&
		strings.HasSuffix(strings.TrimSpace(m.Prompt.Item), "}")
}

func (m *Model) validateCodes(p *problems) {
	c := &m.Codes
	if len(c.Pattern) > 0 && len(c.FirstToken)+len(c.Size) > 0 {
		p.add("codes", "give either pattern, or first_token and size")
	}
	if len(c.FirstToken) != len(c.Size) {
		p.add("codes", "%d first tokens but %d sizes", len(c.FirstToken), len(c.Size))
		return
	}
	for i, f := range c.FirstToken {
		if f < 0 || c.Size[i] <= 0 {
			p.add("codes", "level %d: first token %d, size %d: want at least 0 and 1", i, f, c.Size[i])
		}
	}
	for i, s := range c.Pattern {
		if strings.Count(s, "%") != 1 || !strings.Contains(s, "%d") {
			p.add("codes.pattern", "%q at %d: want exactly one %%d", s, i)
		}
	}
	for i, w := range c.BeamWidths {
		if depth := len(c.Pattern) + len(c.FirstToken); w < 1 || i >= depth {
			p.add("codes.beam_widths", "%d at %d: want at least 1, for at most %d levels", w, i, depth)
			break
		}
	}
	if m.Prompt.History == "codes" && len(c.Pattern)+len(c.FirstToken) == 0 {
		p.add("prompt.history", "codes, but the model has no codes")
	}
}

func (c *Config) validateTables(p *problems) {
	names := map[string]bool{}
	for i := range c.Tables {
		t, path := &c.Tables[i], fmt.Sprintf("tables[%d]", i)
		switch {
		case t.Name == "" || len(t.Name) > 255 || strings.ContainsAny(t.Name, "/ "):
			p.add(path+".name", "%q: want a name of up to 255 bytes without slash or space", t.Name)
		case names[t.Name]:
			p.add(path+".name", "%q is the name of another table", t.Name)
		}
		names[t.Name] = true
		p.oneOf(path+".store", t.Store, "pebble", "file", "redis")
		p.oneOf(path+".policy", t.Policy, "default", "lru", "laru", "sieve")
		p.oneOf(path+".format", t.Format, "f32", "bf16")
		p.between(path+".dim", t.Dim, 1, 1<<18)
		p.between(path+".timeout_ms", t.TimeoutMillis, 1, 60_000)
		if (t.Store == "file") != (t.File != "") {
			p.add(path+".file", "is for the store file, which needs it")
		}
		if (t.Store == "redis") != (len(t.Addresses) > 0) {
			p.add(path+".addresses", "are for the store redis, which needs some")
		}
		odd := t.Dim%2 != 0 || t.Format == "bf16" && t.Dim%4 != 0
		if t.Cache.Percent > 0 || t.Cache.Bytes > 0 && t.Store != "file" && odd {
			p.add(path+".cache", "%s: want bytes; a cache needs an even dim, in bf16 a multiple of 4: else set it to 0", t.Cache)
		}
		if len(t.Default) > 0 && len(t.Default) != t.Dim {
			p.add(path+".default", "has %d numbers, a row %d", len(t.Default), t.Dim)
		}
	}
}

// Computes reports whether the process computes. Members of a cluster without the role node do not.
func (c *Config) Computes() bool {
	return c.Cluster.Name == "" || slices.Contains(c.Cluster.Roles, "node")
}

// Holds reports whether the process keeps KV. Members of a cluster that only route do not.
func (c *Config) Holds() bool { return c.Computes() || slices.Contains(c.Cluster.Roles, "kv") }

// validateCluster checks the cluster's part.
func (c *Config) validateCluster(p *problems) {
	k, none := &c.Cluster, Default().Cluster
	if k.Name == "" {
		if !reflect.DeepEqual(*k, none) {
			p.add("cluster.name", "is missing: without it there is no cluster, and the other keys mean nothing")
		}
		return
	}
	for _, id := range []struct{ path, value string }{{"cluster.name", k.Name}, {"cluster.node", k.Node}} {
		if strings.ContainsFunc(id.value, func(r rune) bool { return r > '~' || !strings.ContainsRune(idLetters, r) }) ||
			len(id.value) > 63 {
			p.add(id.path, "%q: want at most 63 letters, digits, '.', '_' and '-'", id.value)
		}
	}
	if k.Coordinator != "embedded" && !strings.HasPrefix(k.Coordinator, "etcd://") && !k.OnKubernetes() {
		p.add("cluster.coordinator", "%q: want etcd://HOST:PORT,…, embedded or kubernetes", k.Coordinator)
	}
	for _, a := range []struct{ path, addr string }{
		{"cluster.listen", k.Listen}, {"cluster.advertise", k.Advertise}, {"cluster.api", k.API}, {"cluster.etcd", k.Etcd},
	} {
		if _, port, err := net.SplitHostPort(a.addr); a.addr != "" && (err != nil || port == "") ||
			a.addr == "" && a.path == "cluster.listen" {
			p.add(a.path, "%q is not an address: write HOST:PORT, such as 127.0.0.1:7070", a.addr)
		}
	}
	for _, a := range k.UserAddresses() {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" || strings.ContainsAny(a, "@/") {
			p.add("cluster.users", "%s: want redis://HOST:PORT,…; names and passwords are in users_username and "+
				"users_password_env",
				withoutPassword(k.Users))
			break
		}
	}
	if k.Users != "log" && k.UserAddresses() == nil {
		p.add("cluster.users", "%s: want log or redis://HOST:PORT,…", withoutPassword(k.Users))
	}
	p.oneOf("cluster.routing", k.Routing, "predicted", "affinity", "emb-kv", "kv-only", "emb-only", "least-loaded",
		"round-robin", "user-hash")
	p.oneOf("cluster.fetch", k.Fetch, "on", "off")
	if k.Fetch == "off" && slices.Contains(k.Roles, "kv") {
		p.add("cluster.fetch", "is off: a member with the role kv has nothing but the KV that it fetches")
	}
	for i, r := range k.Roles {
		p.oneOf(fmt.Sprintf("cluster.roles[%d]", i), r, "node", "kv", "router")
	}
	switch {
	case len(k.Roles) == 0:
		p.add("cluster.roles", "is empty: want node, kv or router")
	case slices.Contains(k.Roles, "node") && slices.Contains(k.Roles, "kv"):
		p.add("cluster.roles", "%v: a node holds KV already: remove kv", k.Roles)
	case slices.Contains(k.Roles, "kv") && c.Cache.HostMemory.IsZero():
		p.add("cache.host_memory", "is 0: a member with the role kv holds KV there")
	}
	switch t := &k.TLS; {
	case (t.Cert == "") != (t.Key == "") || (t.Cert == "") != (t.CA == ""):
		p.add("cluster.tls", "give cert, key and ca")
	case t.Cert == "" && !k.Insecure && !isLoopback(k.Listen):
		p.add("cluster.tls", "is missing: other machines reach %s, and members would not know whom they talk to. Give "+
			"cert, key and ca, "+
			"or set cluster.insecure in a closed network", k.Listen)
	}
}

// OnKubernetes reports whether the API server of Kubernetes coordinates the cluster.
func (k *Cluster) OnKubernetes() bool {
	return k.Coordinator == "kubernetes" || strings.HasPrefix(k.Coordinator, "kubernetes://")
}

const idLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

// isLoopback reports whether only this machine reaches an address.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}

// withoutPassword quotes an address, unless a name and a password may be in it.
func withoutPassword(address string) string {
	if strings.Contains(address, "@") {
		return "a value with an @, which is not shown"
	}
	return strconv.Quote(address)
}
