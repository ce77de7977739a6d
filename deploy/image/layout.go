package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"grebe/deploy/tree"
)

// The media types of https://github.com/opencontainers/image-spec, version 1.1.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type imageConfig struct {
	Created string `json:"created"`
	platform
	Config containerConfig `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []history `json:"history"`
}

// saved is what docker load reads where it does not know OCI layouts.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// path returns where a blob lies in the layout.
func (d descriptor) path() string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }

type containerConfig struct {
	User         string
	ExposedPorts map[string]struct{}
	Entrypoint   []string
	Cmd          []string
	WorkingDir   string
	StopSignal   string
	Labels       map[string]string
	// Healthcheck is a field that runtimes besides Kubernetes read; OCI reserves its name.
	Healthcheck healthcheck
}

type healthcheck struct {
	Test                           []string
	Interval, Timeout, StartPeriod time.Duration
}

type history struct {
	Created   string `json:"created"`
	CreatedBy string `json:"created_by"`
}

// epoch is the time of all files.
var epoch = time.Unix(0, 0).UTC()

// write writes the layout.
func write(w io.Writer, files []tree.File, arch, name string) error {
	at := strings.LastIndexByte(name, ':')
	if at <= 0 || at == len(name)-1 || strings.Contains(name[at:], "/") {
		return fmt.Errorf("%q is not a name of an image: write NAME:TAG", name)
	}
	tag := name[at+1:]
	plain, err := tree.Tar(files, "", epoch)
	if err != nil {
		return err
	}
	packed, err := tree.Gzip(plain)
	if err != nil {
		return err
	}
	l := &layout{out: tar.NewWriter(w)}
	l.folder("blobs/")
	l.folder("blobs/sha256/")
	on := platform{arch, "linux"}
	cfg := configOf(on, digest(plain))
	m := manifest{SchemaVersion: 2, MediaType: manifestType, Config: l.object(configType, cfg),
		Layers: []descriptor{l.blob(layerType, packed)}}
	l.file(
		"manifest.json",
		l.json([]saved{{Config: m.Config.path(), RepoTags: []string{name}, Layers: []string{m.Layers[0].path()}}}))
	d := l.object(manifestType, m)
	d.Platform = &on
	d.Annotations = map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": name}
	l.file("index.json", l.json(index{SchemaVersion: 2, MediaType: indexType, Manifests: []descriptor{d}}))
	l.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	if l.err == nil {
		l.err = l.out.Close()
	}
	return l.err
}

func configOf(on platform, diff string) *imageConfig {
	c := &imageConfig{Created: epoch.Format(time.RFC3339), platform: on}
	c.Config = containerConfig{
		User:         fmt.Sprintf("%d:%[1]d", user),
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8082/tcp": {}},
		Entrypoint:   []string{program}, Cmd: []string{"serve", "-c", "/etc/grebe/grebe.yaml"},
		WorkingDir: "/var/lib/grebe", StopSignal: "SIGTERM",
		Labels: map[string]string{"org.opencontainers.image.title": "grebe"},
		Healthcheck: healthcheck{Test: []string{"CMD", program, "health"}, Interval: 10 * time.Second,
			Timeout: 5 * time.Second, StartPeriod: 5 * time.Minute},
	}
	c.RootFS.Type, c.RootFS.DiffIDs = "layers", []string{diff}
	c.History = []history{{c.Created, "deploy/image"}}
	return c
}

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// layout writes the outer tar. Its first error stays.
type layout struct {
	out *tar.Writer
	err error
}

func (l *layout) header(h *tar.Header, data []byte) {
	if l.err != nil {
		return
	}
	h.ModTime, h.Format = epoch, tar.FormatUSTAR
	if l.err = l.out.WriteHeader(h); l.err == nil {
		_, l.err = l.out.Write(data)
	}
}

func (l *layout) folder(name string) {
	l.header(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, nil)
}

func (l *layout) file(name string, data []byte) {
	l.header(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}, data)
}

func (l *layout) json(v any) []byte {
	data, err := json.Marshal(v)
	if l.err == nil {
		l.err = err
	}
	return data
}

// blob writes content under its digest.
func (l *layout) blob(kind string, data []byte) descriptor {
	d := digest(data)
	l.file("blobs/sha256/"+strings.TrimPrefix(d, "sha256:"), data)
	return descriptor{MediaType: kind, Digest: d, Size: len(data)}
}

func (l *layout) object(kind string, v any) descriptor { return l.blob(kind, l.json(v)) }
