package doctor

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"grebe/embed/redisserver"
	"grebe/internal/config"
)

func examinedUsers(k config.Cluster) *Report {
	r := &Report{}
	k.Name = "shop"
	examineUsers(r, &k)
	return r
}

// answeredUsers examines until the server answers in time: the machine may be busy.
func answeredUsers(k config.Cluster) (r *Report) {
	for end := time.Now().Add(time.Minute); ; {
		r = examinedUsers(k)
		if len(r.Findings) != 1 || time.Now().After(end) || r.Findings[0].Status == OK ||
			strings.Contains(r.Findings[0].Detail, "WRONGPASS") {
			return r
		}
	}
}

// A store of users that is not there, or whose password is missing, is a problem.
func TestUsersUnreachable(t *testing.T) {
	if r := examinedUsers(config.Cluster{Users: "log"}); len(r.Findings) != 0 {
		t.Errorf("users in the log: %+v", r.Findings)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := l.Addr().String()
	l.Close()
	wantFinding(t, examinedUsers(config.Cluster{Users: "redis://" + gone}), "cluster.users", Fail, gone)
	wantFinding(t, examinedUsers(config.Cluster{Users: "redis://" + gone, UsersPasswordEnv: "NO_SUCH_PASSWORD"}),
		"cluster.users", Fail,
		"NO_SUCH_PASSWORD, is empty")
}

// A server answers those who know its password.
func TestUsersInRedis(t *testing.T) {
	s, err := redisserver.Start("--user", "shop", "on", ">secret", "~*", "+@all")
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	k := config.Cluster{Users: "redis://" + s.Addr, UsersUsername: "shop", UsersPasswordEnv: "DOCTOR_TEST_PASSWORD"}
	t.Setenv("DOCTOR_TEST_PASSWORD", "secret")
	r := answeredUsers(k)
	wantFinding(t, r, "cluster.users", OK, s.Addr)
	if r.Failed() {
		t.Errorf("failed: %+v", r.Findings)
	}
	t.Setenv("DOCTOR_TEST_PASSWORD", "wrong")
	wantFinding(t, answeredUsers(k), "cluster.users", Fail, "WRONGPASS")
	// others need no password here
	wantFinding(t, answeredUsers(config.Cluster{Users: "redis://" + s.Addr}), "cluster.users", OK, s.Addr)
}
