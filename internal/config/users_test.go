package config

import (
	"slices"
	"strings"
	"testing"
)

func TestUsersOfACluster(t *testing.T) {
	for users, want := range map[string]string{
		"log":                     "",
		"redis://127.0.0.1:6379":  "",
		"redis://a:1,b:2":         "",
		"redis://":                "redis://HOST:PORT",
		"redis://a":               "redis://HOST:PORT",
		"redis://me:secret@a:1":   "users_password_env",
		"redis://a:1,me:secret@b": "users_password_env",
		"rediss://me:secret@a:1":  "redis://HOST:PORT",
		"me:secret@a:1":           "redis://HOST:PORT",
		"redis://a:1/0":           "redis://HOST:PORT",
		"rediss://a:1":            "redis://HOST:PORT",
		"postgres://a:1":          "redis://HOST:PORT",
		"redis://a:1,":            "redis://HOST:PORT",
	} {
		c := Default()
		c.Models = []Model{{Path: "m"}}
		c.Cluster.Name, c.Cluster.Coordinator, c.Cluster.Users = "shop", "embedded", users
		err := c.Validate()
		said := err != nil && strings.Contains(err.Error(), "cluster.users")
		if said != (want != "") || said && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", users, err)
		}
		if said && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the password is shown: %v", users, err)
		}
	}
	k := Cluster{Users: "redis://a:1,b:2"}
	if got := k.UserAddresses(); !slices.Equal(got, []string{"a:1", "b:2"}) {
		t.Errorf("addresses %q", got)
	}
}
