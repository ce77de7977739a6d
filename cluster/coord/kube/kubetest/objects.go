package kubetest

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kind is a kind of objects.
type kind struct {
	group, version, resource, name string
	createByUpdate                 bool // an update of an absent object creates it
	check                          func(map[string]any) error
}

var kinds = []*kind{
	{"", "v1", "configmaps", "ConfigMap", false, checkConfigMap},
	{"coordination.k8s.io", "v1", "leases", "Lease", true, checkLease},
}

func (k *kind) apiVersion() string {
	if k.group == "" {
		return k.version
	}
	return k.group + "/" + k.version
}

func (k *kind) path() string {
	if k.group == "" {
		return "api/" + k.version
	}
	return "apis/" + k.group + "/" + k.version
}

// query is what a request asks for.
type query struct {
	verb            string
	kind            *kind
	namespace, name string
	params          url.Values
}

// full names the resource as Kubernetes does in messages.
func (q *query) full() string {
	out := q.kind.resource
	if q.kind.group != "" {
		out += "." + q.kind.group
	}
	if q.name != "" {
		out += fmt.Sprintf(" %q", q.name)
	}
	return out
}

func parse(r *http.Request) (*query, *status) {
	path := strings.Trim(r.URL.Path, "/")
	q := &query{params: r.URL.Query()}
	for _, k := range kinds {
		rest, ok := strings.CutPrefix(path, k.path()+"/namespaces/")
		parts := strings.Split(rest, "/")
		if ok && len(parts) >= 2 && len(parts) <= 3 && parts[1] == k.resource {
			q.kind, q.namespace = k, parts[0]
			q.name = strings.Join(parts[2:], "")
		}
	}
	if q.kind == nil {
		return nil, fail(http.StatusNotFound, "NotFound", "the server could not find the requested resource")
	}
	watch, _ := strconv.ParseBool(q.params.Get("watch"))
	switch {
	case r.Method == http.MethodGet && q.name != "":
		q.verb = "get"
	case r.Method == http.MethodGet && watch:
		q.verb = "watch"
	case r.Method == http.MethodGet:
		q.verb = "list"
	case r.Method == http.MethodPost && q.name == "":
		q.verb = "create"
	case q.name != "":
		q.verb = map[string]string{http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	}
	if q.verb == "" {
		return nil, fail(http.StatusMethodNotAllowed, "MethodNotAllowed",
			"the server does not allow this method on the requested resource")
	}
	return q, nil
}

func meta(o map[string]any) map[string]any {
	m, _ := o["metadata"].(map[string]any)
	if m == nil {
		m = map[string]any{}
		o["metadata"] = m
	}
	return m
}

func text(m map[string]any, key string) string { s, _ := m[key].(string); return s }

func versionOf(o map[string]any) int64 {
	v, _ := strconv.ParseInt(text(meta(o), "resourceVersion"), 10, 64)
	return v
}

func clone(o map[string]any) map[string]any {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // it was made from JSON
	}
	var out map[string]any
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	return out
}

func (r *record) at(version int64) map[string]any {
	for _, v := range slices.Backward(r.values) {
		if v.version <= version {
			return v.object
		}
	}
	return nil
}

func (r *record) now() map[string]any {
	if r == nil || len(r.values) == 0 {
		return nil
	}
	return r.values[len(r.values)-1].object
}

const (
	maxData  = 1 << 20   // of a ConfigMap
	maxNotes = 256 << 10 // of all annotations
)

var (
	dnsName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	labelValue = regexp.MustCompile(`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`)
	labelName  = regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`)
	dataKey    = regexp.MustCompile(`^[-._a-zA-Z0-9]+$`)
)

func checkName(key string) error {
	prefix, name, ok := strings.Cut(key, "/")
	if !ok {
		prefix, name = "x", key
	}
	if !dnsName.MatchString(prefix) || len(name) > 63 || !labelName.MatchString(name) {
		return fmt.Errorf("%q is no name of a label or annotation", key)
	}
	return nil
}

// checkMeta checks what all kinds have.
func checkMeta(o map[string]any) error {
	m := meta(o)
	if name := text(m, "name"); !dnsName.MatchString(name) || len(name) > 253 {
		return fmt.Errorf("metadata.name: Invalid value: %q: a lowercase RFC 1123 subdomain", name)
	}
	labels, _ := m["labels"].(map[string]any)
	for k, v := range labels {
		s, ok := v.(string)
		if err := checkName(k); err != nil || !ok || len(s) > 63 || !labelValue.MatchString(s) {
			return fmt.Errorf("metadata.labels: Invalid value: %q=%v", k, v)
		}
	}
	notes, size := m["annotations"], 0
	if notes, ok := notes.(map[string]any); ok {
		for k, v := range notes {
			s, ok := v.(string)
			if err := checkName(k); err != nil || !ok {
				return fmt.Errorf("metadata.annotations: Invalid value: %q", k)
			}
			size += len(k) + len(s)
		}
	}
	if size > maxNotes {
		return fmt.Errorf("metadata.annotations: Too long: may not be more than %d bytes", maxNotes)
	}
	return nil
}

func checkConfigMap(o map[string]any) error {
	size := 0
	for _, field := range []string{"data", "binaryData"} {
		m, _ := o[field].(map[string]any)
		for k, v := range m {
			s, ok := v.(string)
			if !ok || !dataKey.MatchString(k) {
				return fmt.Errorf("%s[%s]: Invalid value", field, k)
			}
			n := len(s)
			if field == "binaryData" {
				b, err := base64.StdEncoding.DecodeString(s)
				if err != nil {
					return fmt.Errorf("%s[%s]: %w", field, k, err)
				}
				n = len(b)
			}
			size += n
		}
	}
	if size > maxData {
		return fmt.Errorf("[]: Too long: may not be more than %d bytes", maxData)
	}
	return nil
}

func checkLease(o map[string]any) error {
	spec, _ := o["spec"].(map[string]any)
	if seconds, ok := spec["leaseDurationSeconds"].(float64); ok && (seconds <= 0 || seconds != float64(int32(seconds))) {
		return errors.New("spec.leaseDurationSeconds: Invalid value: must be greater than 0")
	}
	if holder, ok := spec["holderIdentity"].(string); ok && holder == "" {
		return errors.New("spec.holderIdentity: Invalid value: must not be empty")
	}
	for _, field := range []string{"acquireTime", "renewTime"} {
		if v, ok := spec[field]; ok && v != nil {
			s, _ := v.(string)
			if _, err := time.Parse("2006-01-02T15:04:05.000000Z07:00", s); err != nil {
				return fmt.Errorf("spec.%s: %w", field, err)
			}
		}
	}
	return nil
}

// body reads a request's object.
func body(q *query, r *http.Request) (map[string]any, *status) {
	b, err := io.ReadAll(io.LimitReader(r.Body, 3<<20+1))
	if err != nil {
		return nil, fail(http.StatusBadRequest, "BadRequest", "%v", err)
	}
	if len(b) > 3<<20 {
		return nil, fail(http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "limit is %d", 3<<20)
	}
	if len(b) == 0 && q.verb == "delete" {
		return map[string]any{}, nil
	}
	want := "application/json"
	if q.verb == "patch" {
		want = "application/merge-patch+json"
	}
	if got := r.Header.Get("Content-Type"); got != want {
		return nil, fail(http.StatusUnsupportedMediaType, "UnsupportedMediaType",
			"the body of the request was in an unknown format - %q", got)
	}
	var o map[string]any
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, fail(http.StatusBadRequest, "BadRequest", "%v", err)
	}
	return o, nil
}

// do carries out a request that is no watch.
func (s *Server) do(q *query, r *http.Request) (int, any, *status) {
	var in map[string]any
	if q.verb != "get" && q.verb != "list" {
		var f *status
		if in, f = body(q, r); f != nil {
			return 0, nil, f
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out any
	var f *status
	code := http.StatusOK
	switch q.verb {
	case "get":
		out, f = s.get(q)
	case "list":
		out, f = s.list(q)
	case "create":
		code = http.StatusCreated
		out, f = s.create(q, in)
	case "update":
		out, f = s.update(q, in)
	case "patch":
		out, f = s.patch(q, in)
	case "delete":
		out, f = s.remove(q, in)
	}
	if f == nil && in != nil && s.faults.lose > 0 {
		s.faults.lose--
		return 0, nil, fail(http.StatusGatewayTimeout, "Timeout",
			"Timeout: request did not complete within the allotted timeout")
	}
	return code, out, f
}

func (q *query) key(name string) string { return q.kind.resource + "/" + q.namespace + "/" + name }

func (q *query) absent() *status {
	return fail(http.StatusNotFound, "NotFound", "%s not found", q.full())
}

func (q *query) conflict(format string, args ...any) *status {
	return fail(http.StatusConflict, "Conflict", "Operation cannot be fulfilled on %s: %s", q.full(),
		fmt.Sprintf(format, args...))
}

func (s *Server) get(q *query) (any, *status) {
	if o := s.objects[q.key(q.name)].now(); o != nil {
		return o, nil
	}
	return nil, q.absent()
}

// put stores an object's next state; nil: it is deleted.
func (s *Server) put(q *query, name string, o map[string]any) map[string]any {
	s.version++
	r := s.objects[q.key(name)]
	if r == nil {
		r = &record{kind: q.kind, namespace: q.namespace, name: name}
		s.objects[q.key(name)] = r
	}
	before := r.now()
	if o != nil {
		meta(o)["resourceVersion"] = strconv.FormatInt(s.version, 10)
	} else if s.faults.forget > 0 {
		s.faults.forget--
		s.faults.forgotten[s.version] = true
	}
	r.values = append(r.values, value{s.version, o})
	s.history = append(s.history, change{s.version, r, before, o})
	s.wake()
	return o
}

// prepare checks an object and fills in what the server decides. before is its state until now; nil: none.
func (s *Server) prepare(q *query, o, before map[string]any) *status {
	if v, k := text(o, "apiVersion"), text(o, "kind"); v != q.kind.apiVersion() || k != q.kind.name {
		return fail(http.StatusBadRequest, "BadRequest", "%s %s does not match the resource %s", v, k, q.kind.resource)
	}
	m := meta(o)
	if ns := text(m, "namespace"); ns != "" && ns != q.namespace {
		return fail(http.StatusBadRequest, "BadRequest",
			"the namespace of the provided object does not match the namespace sent on the request")
	}
	m["namespace"] = q.namespace
	for _, field := range []string{"uid", "creationTimestamp"} {
		if before != nil {
			m[field] = meta(before)[field]
		}
	}
	if before == nil {
		m["uid"] = fmt.Sprintf("00000000-0000-4000-8000-%012x", s.version)
		m["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	}
	err := checkMeta(o)
	if err == nil {
		err = q.kind.check(o)
	}
	if err != nil {
		return fail(http.StatusUnprocessableEntity, "Invalid", "%s %q is invalid: %v", q.kind.name, text(m, "name"), err)
	}
	return nil
}

func (s *Server) create(q *query, in map[string]any) (any, *status) {
	name := text(meta(in), "name")
	if text(meta(in), "resourceVersion") != "" {
		return nil, fail(http.StatusBadRequest, "BadRequest", "resourceVersion should not be set on objects to be created")
	}
	if f := s.prepare(q, in, nil); f != nil {
		return nil, f
	}
	if s.objects[q.key(name)].now() != nil {
		return nil, fail(http.StatusConflict, "AlreadyExists", "%s %q already exists", q.kind.resource, name)
	}
	return s.put(q, name, in), nil
}

func (s *Server) update(q *query, in map[string]any) (any, *status) {
	if name := text(meta(in), "name"); name != q.name {
		return nil, fail(http.StatusBadRequest, "BadRequest",
			"the name of the object (%s) does not match the name on the URL (%s)", name, q.name)
	}
	before := s.objects[q.key(q.name)].now()
	uid := text(meta(in), "uid")
	switch {
	case before == nil && uid != "":
		return nil, q.conflict("Precondition failed: UID in precondition: %s, UID in object meta: ", uid)
	case before == nil && q.kind.createByUpdate:
		delete(meta(in), "resourceVersion")
		return s.create(q, in)
	case before == nil:
		return nil, q.absent()
	case uid != "" && uid != text(meta(before), "uid"):
		return nil, q.conflict("Precondition failed: UID in precondition: %s, UID in object meta: %s",
			uid, text(meta(before), "uid"))
	}
	return s.replace(q, in, before)
}

// replace stores the next state of an object, if that is based on the state before.
func (s *Server) replace(q *query, in, before map[string]any) (any, *status) {
	if v := versionOf(in); v != 0 && v != versionOf(before) {
		return nil, q.conflict("the object has been modified; please apply your changes to the latest version and try again")
	}
	if f := s.prepare(q, in, before); f != nil {
		return nil, f
	}
	meta(in)["resourceVersion"] = meta(before)["resourceVersion"]
	if reflect.DeepEqual(in, before) {
		return before, nil // nothing is written
	}
	return s.put(q, q.name, in), nil
}

func (s *Server) patch(q *query, in map[string]any) (any, *status) {
	before := s.objects[q.key(q.name)].now()
	if before == nil {
		return nil, q.absent()
	}
	return s.replace(q, merge(clone(before), in), before)
}

// merge applies a merge patch (RFC 7386).
func merge(target, patch map[string]any) map[string]any {
	if target == nil {
		target = map[string]any{}
	}
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(target, k)
		case map[string]any:
			inner, _ := target[k].(map[string]any)
			target[k] = merge(inner, v)
		default:
			target[k] = v
		}
	}
	return target
}

func (s *Server) remove(q *query, in map[string]any) (any, *status) {
	before := s.objects[q.key(q.name)].now()
	if before == nil {
		return nil, q.absent()
	}
	conditions, _ := in["preconditions"].(map[string]any)
	for _, field := range []string{"uid", "resourceVersion"} {
		if want, is := text(conditions, field), text(meta(before), field); want != "" && want != is {
			return nil, q.conflict("Precondition failed: %s in precondition: %s, in object meta: %s", field, want, is)
		}
	}
	s.put(q, q.name, nil)
	return map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Success"}, nil
}

// selector selects objects by their labels.
type selector map[string]string

func parseSelector(s string) (selector, *status) {
	out := selector{}
	for part := range strings.SplitSeq(s, ",") {
		if part == "" {
			continue
		}
		k, v, ok := strings.Cut(part, "=")
		v = strings.TrimPrefix(v, "=")
		if !ok || checkName(k) != nil || !labelValue.MatchString(v) {
			return nil, fail(http.StatusBadRequest, "BadRequest", "unable to parse requirement: %q", part)
		}
		out[k] = v
	}
	return out, nil
}

func (l selector) selects(o map[string]any) bool {
	if o == nil {
		return false
	}
	labels, _ := meta(o)["labels"].(map[string]any)
	for k, v := range l {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// list returns a page. Its continuation shows the state of the first page, or gets 410.
func (s *Server) list(q *query) (any, *status) {
	selected, f := parseSelector(q.params.Get("labelSelector"))
	if f != nil {
		return nil, f
	}
	at, after := s.version, ""
	if next := q.params.Get("continue"); next != "" {
		version, name, ok := strings.Cut(next, " ")
		v, err := strconv.ParseInt(version, 10, 64)
		if !ok || err != nil {
			return nil, fail(http.StatusBadRequest, "BadRequest", "continue key is not valid")
		}
		if v < s.compacted {
			return nil, fail(http.StatusGone, "Expired", "The provided continue parameter is too old")
		}
		at, after = v, name
	}
	limit, _ := strconv.Atoi(q.params.Get("limit"))
	items, header := []any{}, map[string]any{"resourceVersion": strconv.FormatInt(at, 10)}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		r := s.objects[key]
		if r.kind != q.kind || r.namespace != q.namespace || r.name <= after || !selected.selects(r.at(at)) {
			continue
		}
		if limit > 0 && len(items) == limit {
			last := items[len(items)-1].(map[string]any)
			header["continue"] = fmt.Sprintf("%d %s", at, text(meta(last), "name"))
			break
		}
		items = append(items, r.at(at))
	}
	return map[string]any{"kind": q.kind.name + "List", "apiVersion": q.kind.apiVersion(), "metadata": header,
		"items": items}, nil
}
