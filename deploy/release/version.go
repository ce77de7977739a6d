package main

import (
	"errors"
	"fmt"
	"regexp"
)

// version is a version as each kind of package writes it.
type version struct {
	described string // as git describe prints it: the binary and the tag of the image
	semantic  string // semver.org: the chart and the names of files
	debian    string // sorts in dpkg as the semantic one does
}

var (
	tagged   = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)(?:-([0-9A-Za-z.]+?))??(-dirty)?$`)
	after    = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)-(\d+)-g([0-9a-f]+)(-dirty)?$`)
	revision = regexp.MustCompile(`^([0-9a-f]{4,40})(-dirty)?$`)
)

// parseVersion reads what git describe prints: a tag, a tag with the commits since, or a commit.
func parseVersion(described string) (version, error) {
	if m := after.FindStringSubmatch(described); m != nil {
		build := m[1] + "+" + m[2] + ".g" + m[3] + dotted(m[4])
		return version{described, build, build}, nil
	}
	if m := tagged.FindStringSubmatch(described); m != nil {
		v := version{described, m[1], m[1]}
		if m[2] != "" {
			v.semantic += "-" + m[2]
			v.debian += "~" + m[2]
		}
		if m[3] != "" {
			v.semantic += "+dirty"
			v.debian += "+dirty"
		}
		return v, nil
	}
	if m := revision.FindStringSubmatch(described); m != nil {
		build := "g" + m[1] + dotted(m[2])
		return version{described, "0.0.0-" + build, "0.0.0~" + build}, nil
	}
	return version{}, fmt.Errorf("version %q: want a tag such as v1.2.3 or v1.2.3-rc1, or what git describe --always "+
		"prints", described)
}

// dotted returns the suffix -dirty as a part of a build's name.
func dotted(suffix string) string {
	if suffix == "" {
		return ""
	}
	return ".dirty"
}

var (
	chartVersion = regexp.MustCompile(`(?m)^version: .*$`)
	appVersion   = regexp.MustCompile(`(?m)^appVersion: .*$`)
)

// inChart returns a Chart.yaml with this version. appVersion is the image's tag: there a chart looks for it.
func (v version) inChart(text []byte) ([]byte, error) {
	if len(chartVersion.FindAll(text, -1)) != 1 || len(appVersion.FindAll(text, -1)) != 1 {
		return nil, errors.New("the file Chart.yaml does not have one version and one appVersion")
	}
	text = chartVersion.ReplaceAllLiteral(text, []byte(`version: "`+v.semantic+`"`))
	return appVersion.ReplaceAllLiteral(text, []byte(`appVersion: "`+v.described+`"`)), nil
}
