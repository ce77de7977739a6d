package doctor

import (
	"context"
	"os"
	"strings"

	"grebe/catalog/redisusers"
	"grebe/internal/config"
)

// examineUsers checks whether the store of users in Redis or Valkey answers this node, if there is one.
func examineUsers(r *Report, k *config.Cluster) {
	const check = "cluster.users"
	addresses := k.UserAddresses()
	if addresses == nil {
		return
	}
	c := redisusers.Config{Addresses: addresses, Username: k.UsersUsername, Prefix: "grebe:" + k.Name + ":user:"}
	if name := k.UsersPasswordEnv; name != "" {
		if c.Password = os.Getenv(name); c.Password == "" {
			r.add(check, Fail, "set the variable "+name+", or correct cluster.users_password_env",
				"the variable with the password, %s, is empty", name)
			return
		}
	}
	store, at := redisusers.Open(c), strings.Join(addresses, ", ")
	defer store.Close()
	// A user of this name cannot exist: ids are not empty. The answer shows that the server lets this node read.
	if _, _, err := store.Get(context.Background(), ""); err != nil {
		r.add(check, Fail, "start Redis or Valkey there, open its port to this machine, check cluster.users_username and "+
			"cluster.users_password_env, or correct cluster.users; requests that name a stored user get 503 until then",
			"%s: %v", at, err)
		return
	}
	r.add(check, OK, "", "%s answers", at)
}
