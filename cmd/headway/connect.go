package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"
)

// redisFlags say where Redis is, in the words of redis-cli and asynq's tool.
type redisFlags struct {
	url, password, user, sentinelPassword string
	addrs                                 []string
	db                                    int
	cluster, tls, insecure                bool
	cacert, cert, key, sni                string
	sentinelMaster                        string
	timeout                               time.Duration

	env   redisEnv
	given func(flag string) bool // tells whether the command line has this flag; nil when there is no command line
}

// redisEnv is what the environment says about Redis. A flag that is given goes before it. It is no
// default of a flag: the help shows those, and a password is among these.
type redisEnv struct{ url, password, sentinelPassword string }

// or is the value of a flag, or another where the flag is not given.
func (r *redisFlags) or(flag, value, other string) string {
	if value != "" || r.given != nil && r.given(flag) {
		return value
	}
	return other
}

func (r *redisFlags) add(f *pflag.FlagSet) {
	r.given = f.Changed
	r.env = redisEnv{cmp.Or(os.Getenv("HEADWAY_REDIS_URL"), os.Getenv("REDIS_URL")), os.Getenv("REDISCLI_AUTH"), os.Getenv("HEADWAY_SENTINEL_AUTH")}
	f.StringVarP(&r.url, "url", "u", "", "redis://, rediss:// or unix:// `URL` (HEADWAY_REDIS_URL, REDIS_URL)")
	f.StringSliceVar(&r.addrs, "redis", nil, "`HOST:PORT`; several are the nodes of a cluster, or the sentinels (default 127.0.0.1:6379)")
	f.StringVar(&r.user, "user", "", "`USER` of Redis")
	f.StringVar(&r.password, "pass", "", "`PASSWORD`; better in the environment (REDISCLI_AUTH)")
	f.IntVarP(&r.db, "db", "n", 0, "database `NUMBER` (default that of the URL, or 0)")
	f.BoolVar(&r.cluster, "cluster", false, "the address is a node of a Redis Cluster")
	f.StringVar(&r.sentinelMaster, "sentinel-master", "", "`NAME` of the master; --redis are the sentinels")
	f.StringVar(&r.sentinelPassword, "sentinel-pass", "", "`PASSWORD` of the sentinels (HEADWAY_SENTINEL_AUTH)")
	f.BoolVar(&r.tls, "tls", false, "connect with TLS")
	f.StringVar(&r.cacert, "cacert", "", "`FILE` of the authority that the server is checked by (default the system's)")
	f.StringVar(&r.cert, "cert", "", "`FILE` of the client's certificate")
	f.StringVar(&r.key, "key", "", "`FILE` of the client's key")
	f.StringVar(&r.sni, "sni", "", "`NAME` that the certificate of each server must have (default the host of the server)")
	f.BoolVar(&r.insecure, "insecure", false, "do not check the server's certificate")
	f.DurationVar(&r.timeout, "timeout", 5*time.Second, "how long one call may take")
}

// open makes a client. It does not connect.
func (r *redisFlags) open() (redis.UniversalClient, error) {
	o, err := r.options()
	if err != nil {
		return nil, err
	}
	return redis.NewUniversalClient(&o), nil
}

// options are those of the client. No error quotes the URL, which may hold a password.
func (r *redisFlags) options() (redis.UniversalOptions, error) {
	o := redis.UniversalOptions{Addrs: r.addrs, OnConnect: func(ctx context.Context, c *redis.Conn) error {
		_ = c.ClientSetName(ctx, "headway").Err() // a user without that right connects all the same
		return nil
	}}
	var errs []error
	address, source := r.url, "--url"
	switch {
	case address != "" && len(r.addrs) > 0:
		errs = append(errs, errors.New("--url and --redis exclude each other"))
	case address == "" && len(r.addrs) == 0:
		address, source = r.or("url", "", r.env.url), "the URL of the environment"
	}
	if address != "" {
		parsed, err := redis.ParseURL(address)
		if err != nil {
			errs = append(errs, errors.New(source+": want a URL like redis://user:password@host:6379/0"))
		} else {
			// The client dials an address that begins with a slash as a Unix socket.
			o.Addrs, o.Username, o.Password, o.DB, o.TLSConfig = []string{parsed.Addr}, parsed.Username, parsed.Password, parsed.DB, parsed.TLSConfig
			o.Protocol = parsed.Protocol
			if unused := unusedOptions(address); len(unused) > 0 {
				errs = append(errs, fmt.Errorf("%s: headway does not use these options, take them away: %s", source, strings.Join(unused, ", ")))
			}
			if parsed.Network == "unix" && (r.cluster || r.sentinelMaster != "") {
				errs = append(errs, errors.New(source+": a Unix socket leads neither to a cluster nor to sentinels"))
			}
		}
	}
	for _, addr := range r.addrs {
		if strings.Contains(addr, "://") { // it may hold a password, and is not repeated
			errs = append(errs, errors.New("--redis: want HOST:PORT; a URL is given by --url"))
			continue
		}
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
			errs = append(errs, fmt.Errorf("--redis: %q is not HOST:PORT", addr))
		}
	}
	if len(o.Addrs) == 0 {
		o.Addrs = []string{"127.0.0.1:6379"}
	}
	if r.cluster && r.sentinelMaster != "" {
		errs = append(errs, errors.New("--cluster and --sentinel-master exclude each other"))
	}
	if r.cluster && r.db != 0 {
		errs = append(errs, errors.New("--db: a cluster has one database, 0"))
	}
	if r.db != 0 || r.given != nil && r.given("db") {
		o.DB = r.db
	}
	o.Username, o.Password = r.or("user", r.user, o.Username), r.or("pass", r.password, cmp.Or(o.Password, r.env.password))
	o.MasterName, o.IsClusterMode = r.sentinelMaster, r.cluster
	o.SentinelPassword = r.or("sentinel-pass", r.sentinelPassword, r.env.sentinelPassword)
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = r.timeout, r.timeout, r.timeout, true
	o.DialerRetries, o.MaxRetries = 1, 1
	if r.tls || r.cacert != "" || r.cert != "" || r.key != "" || r.sni != "" || r.insecure || o.TLSConfig != nil {
		if err := r.secure(&o); err != nil {
			errs = append(errs, err)
		}
	}
	return o, errors.Join(errs...)
}

// usedOptions are the options of a URL that reach the client. Flags say the others.
var usedOptions = []string{"db", "protocol", "skip_verify"}

// unusedOptions are the names of the other options of a URL, which redis.ParseURL has accepted: so
// they are names of its own, and no part of a password.
func unusedOptions(address string) []string {
	u, err := url.Parse(address)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(u.Query())), func(name string) bool { return slices.Contains(usedOptions, name) })
}

func (r *redisFlags) secure(o *redis.UniversalOptions) error {
	c := o.TLSConfig
	if c == nil {
		c = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	// Without a name here, each connection checks the certificate for the host that it dials. The nodes
	// of a cluster and the master behind sentinels have certificates of their own.
	c.ServerName = r.sni
	c.InsecureSkipVerify = r.insecure || c.InsecureSkipVerify
	if r.cacert != "" {
		pem, err := os.ReadFile(r.cacert)
		if err != nil {
			return fmt.Errorf("--cacert: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("--cacert: %s has no certificate", r.cacert)
		}
	}
	if (r.cert == "") != (r.key == "") {
		return errors.New("--cert and --key are given together")
	}
	if r.cert != "" {
		pair, err := tls.LoadX509KeyPair(r.cert, r.key)
		if err != nil {
			return fmt.Errorf("--cert: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	o.TLSConfig = c
	return nil
}
