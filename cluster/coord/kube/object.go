package kube

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"grebe/cluster/coord"
)

// resource is a kind of objects.
type resource struct {
	group, path, name string // path ends with the version of the API
}

var (
	configMaps = resource{"", "/api/v1", "configmaps"}
	leases     = resource{"coordination.k8s.io", "/apis/coordination.k8s.io/v1", "leases"}
	reviews    = resource{"authorization.k8s.io", "/apis/authorization.k8s.io/v1", "selfsubjectaccessreviews"}
)

// Labels and annotations.
const (
	labelCluster = "grebe/cluster"
	labelPrefix  = "grebe/prefix" // a key's first part
	labelLease   = "grebe/lease"  // the end of the name of a key's Lease
	noteKey      = "grebe/key"
	noteWrite    = "grebe/write" // differs between writes: the API server gives no new version to an equal object
	dataField    = "value"
)

// object is a ConfigMap or a Lease, as far as this package needs it.
type object struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   metadata          `json:"metadata"`
	BinaryData map[string][]byte `json:"binaryData,omitempty"`
	Spec       *leaseSpec        `json:"spec,omitempty"`
}

type metadata struct {
	Name            string            `json:"name,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

type leaseSpec struct {
	Holder   string `json:"holderIdentity,omitempty"`
	Seconds  int    `json:"leaseDurationSeconds,omitempty"`
	Acquired string `json:"acquireTime,omitempty"`
	Renewed  string `json:"renewTime,omitempty"` // for people: nobody compares it with a clock
}

// objects is a page of a listing.
type objects struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []object `json:"items"`
}

type deletion struct {
	APIVersion    string         `json:"apiVersion"`
	Kind          string         `json:"kind"`
	Preconditions *preconditions `json:"preconditions,omitempty"`
}

type preconditions struct {
	ResourceVersion string `json:"resourceVersion"`
}

// microTime is the format of a Lease's times.
const microTime = "2006-01-02T15:04:05.000000Z07:00"

func stamp(t time.Time) string { return t.UTC().Format(microTime) }

// version returns an object's version: the revision of etcd, a positive number. Kubernetes promises that since release
// 1.35 (KEP-5504).
func (o *object) version() (int64, error) {
	v, err := strconv.ParseInt(o.Metadata.ResourceVersion, 10, 64)
	if err != nil || v <= 0 {
		return 0, fmt.Errorf("%s has the resourceVersion %q: want a positive number",
			o.Metadata.Name, o.Metadata.ResourceVersion)
	}
	return v, nil
}

// entry returns the key, value and version of a ConfigMap, and the id of its Lease.
func (o *object) entry() (coord.Entry, string, error) {
	key, ok := o.Metadata.Annotations[noteKey]
	if !ok {
		return coord.Entry{}, "", fmt.Errorf("the ConfigMap %s has no annotation %s", o.Metadata.Name, noteKey)
	}
	version, err := o.version()
	if err != nil {
		return coord.Entry{}, "", err
	}
	data := o.BinaryData[dataField]
	if err := coord.Check(key, data); err != nil {
		return coord.Entry{}, "", fmt.Errorf("the ConfigMap %s: %w", o.Metadata.Name, err)
	}
	return coord.Entry{Key: key, Data: data, Version: version}, o.Metadata.Labels[labelLease], nil
}

// entries returns the entries of ConfigMaps whose key begins with prefix, sorted by key.
func (c *Client) entries(objects []object, prefix string) []coord.Entry {
	var out []coord.Entry
	for i := range objects {
		e, _, err := objects[i].entry()
		if err != nil {
			c.o.Log.Warn("skipping an invalid ConfigMap", "error", err)
			continue
		}
		if strings.HasPrefix(e.Key, prefix) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b coord.Entry) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// configMap returns the object of a key.
func (c *Client) configMap(key string, data []byte, lease string) object {
	first, _, _ := strings.Cut(key, "/")
	notes := map[string]string{noteKey: key, noteWrite: random(8)}
	labels := c.labels()
	labels[labelPrefix] = label(first)
	if lease != "" {
		labels[labelLease] = lease
	}
	if data == nil {
		data = []byte{} // null is no value
	}
	return object{APIVersion: "v1", Kind: "ConfigMap", BinaryData: map[string][]byte{dataField: data},
		Metadata: metadata{Name: c.name(key), Labels: labels, Annotations: notes}}
}

func (c *Client) labels() map[string]string {
	return map[string]string{"app.kubernetes.io/managed-by": "grebe", labelCluster: label(c.o.Cluster)}
}

// selector selects the objects of this cluster; and of the prefix's first part, if that is whole.
func (c *Client) selector(prefix string) string {
	s := labelCluster + "=" + label(c.o.Cluster)
	if first, _, whole := strings.Cut(prefix, "/"); whole {
		s += "," + labelPrefix + "=" + label(first)
	}
	return s
}

// name returns the name of a key's ConfigMap: readable, and unique by a digest.
func (c *Client) name(key string) string {
	sum := sha256.Sum256([]byte(c.o.Cluster + "\x00" + key))
	return "grebe-" + slug(c.o.Cluster+"-"+key) + "-" + hex.EncodeToString(sum[:10])
}

// leaseName returns the name of a Lease.
func (c *Client) leaseName(id string) string { return "grebe-" + slug(c.o.Cluster) + "-" + id }

// slug returns the part of a name that people recognise.
func slug(s string) string {
	out := []byte(strings.ToLower(s[:min(len(s), 150)]))
	for i, b := range out {
		if !alphanumeric(b) {
			out[i] = '-'
		}
	}
	return string(out)
}

func alphanumeric(b byte) bool { return b >= 'a' && b <= 'z' || b >= '0' && b <= '9' }

// label returns a value that labels can have: s itself, or a digest of it.
func label(s string) string {
	end := func(b byte) bool { return alphanumeric(b) || b >= 'A' && b <= 'Z' }
	ok := len(s) > 0 && len(s) <= 63 && end(s[0]) && end(s[len(s)-1])
	for i := 0; ok && i < len(s); i++ {
		ok = end(s[i]) || strings.IndexByte("-_.", s[i]) >= 0
	}
	if ok {
		return s
	}
	sum := sha256.Sum256([]byte(s))
	return "sha256-" + hex.EncodeToString(sum[:16])
}

// validName reports whether s is a name of an object.
func validName(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for part := range strings.SplitSeq(s, ".") {
		if part == "" || !alphanumeric(part[0]) || !alphanumeric(part[len(part)-1]) {
			return false
		}
		for i := range len(part) {
			if !alphanumeric(part[i]) && part[i] != '-' {
				return false
			}
		}
	}
	return true
}

// random returns n random bytes in hexadecimal digits.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// errTooMuch reports a listing beyond what a client keeps in memory.
var errTooMuch = errors.New("the cluster's objects take more memory than a coordinator may have")
