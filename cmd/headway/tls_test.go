package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.uber.org/zap"

	"github.com/headwayq/headway/internal/redistest"
	"github.com/headwayq/headway/queue"
	"github.com/headwayq/headway/throttle"
	"github.com/headwayq/headway/worker"
)

// authority issues certificates. Its own and theirs are files.
type authority struct {
	*testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{T: t, dir: t.TempDir()}
	a.file, _ = a.issue("authority")
	return a
}

// issue makes a certificate for this machine; the first is the authority's own.
func (a *authority) issue(name string) (cert, key string) {
	a.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if a.cert == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
		a.cert, a.key = c, private
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &private.PublicKey, a.key)
	if err != nil {
		a.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.Fatal(err)
	}
	cert, key = filepath.Join(a.dir, name+".crt"), filepath.Join(a.dir, name+".key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.Fatal(err)
		}
	}
	return cert, key
}

// The server asks each client for a certificate. It accepts those of its own authority and refuses all
// others. A pool runs over such a connection.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, other := newAuthority(t), newAuthority(t)
	serverCert, serverKey := ours.issue("server")
	cert, key := ours.issue("client")
	strangeCert, strangeKey := other.issue("client")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	_ = ln.Close()
	redistest.Start(t, redistest.Arg("tls-port", port), redistest.Arg("tls-auth-clients", "yes"), redistest.Arg("tls-ca-cert-file", ours.file),
		redistest.Arg("tls-cert-file", serverCert), redistest.Arg("tls-key-file", serverKey))
	for name, tt := range map[string]struct {
		flags redisFlags
		ok    bool
	}{
		"a certificate":                             {redisFlags{addrs: []string{addr}, cacert: ours.file, cert: cert, key: key}, true},
		"a certificate, by URL":                     {redisFlags{url: "rediss://" + addr, cacert: ours.file, cert: cert, key: key}, true},
		"the server is not checked":                 {redisFlags{addrs: []string{addr}, insecure: true, cert: cert, key: key}, true},
		"no certificate":                            {redisFlags{addrs: []string{addr}, cacert: ours.file}, false},
		"a certificate of another authority":        {redisFlags{addrs: []string{addr}, cacert: ours.file, cert: strangeCert, key: strangeKey}, false},
		"another authority checks the server":       {redisFlags{addrs: []string{addr}, cacert: other.file, cert: cert, key: key}, false},
		"the server's certificate has no such name": {redisFlags{addrs: []string{addr}, sni: "redis.example", cacert: ours.file, cert: cert, key: key}, false},
		"no TLS": {redisFlags{addrs: []string{addr}}, false},
	} {
		tt.flags.timeout = 10 * time.Second
		rdb, err := tt.flags.open()
		if err != nil {
			t.Fatal(err)
		}
		if err := rdb.Ping(t.Context()).Err(); (err == nil) != tt.ok {
			t.Errorf("%s: %v, want it to be let in: %v", name, err, tt.ok)
		}
		_ = rdb.Close()
	}

	rdb, err := (&redisFlags{addrs: []string{addr}, cacert: ours.file, cert: cert, key: key, timeout: time.Minute}).open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	policy := queue.Policy{Type: "sms", Rules: []queue.Rule{{Name: "phone", Limit: throttle.Sliding(1, 50*time.Millisecond), Key: queue.MustJSONKey("$.to")}}}
	ran := make(chan struct{}, 3)
	pool, err := worker.New(rdb, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { ran <- struct{}{}; return nil }),
		worker.Config{Policies: []queue.Policy{policy}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Shutdown)
	client, err := queue.NewClient(rdb, queue.ClientConfig{Policies: []queue.Policy{policy}})
	if err != nil {
		t.Fatal(err)
	}
	for range cap(ran) {
		if _, err := client.Enqueue(t.Context(), queue.NewTask("sms", []byte(`{"to":"+15550100"}`))); err != nil {
			t.Fatal(err)
		}
	}
	for range cap(ran) {
		select {
		case <-ran:
		case <-time.After(30 * time.Second):
			t.Fatal("the tasks did not run over TLS")
		}
	}
}
