package luascripts_test

import (
	"bytes"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headwayq/headway/internal/luascripts"
	"github.com/headwayq/headway/internal/queuescripts"
	"github.com/headwayq/headway/internal/redistest"
)

// A fetch whose answer is lost is not repeated by go-redis, as a function, as a script by its hash or by its text.
func TestFetchIsSentOnce(t *testing.T) {
	t.Parallel()
	srv := redistest.Start(t, redistest.Own()) // its scripts are flushed
	rdb, proxy := redistest.Behind(t, srv, func(o *redis.Options) { o.MaxRetries = 3 })
	q := queuescripts.NewQueueKeys("hw", "default")
	fetch := func(call uint64) error {
		_, err := queuescripts.Fetch(t.Context(), rdb, q, queuescripts.FetchArgs{Pool: "p", Call: call, Most: 1})
		return err
	}
	lost := func(how string, call uint64, command string) {
		t.Helper()
		cuts := proxy.Cuts()
		proxy.CutNext(func(request []byte) bool {
			return bytes.Contains(request, []byte(command)) && bytes.Contains(request, []byte("asynq:{default}:pending"))
		})
		if err := fetch(call); err == nil || proxy.Cuts() != cuts+1 {
			t.Errorf("%s: the fetch whose answer was lost = %v, %d answers lost, want an error and one", how, err, proxy.Cuts()-cuts)
		}
	}
	if err := fetch(1); err != nil { // from then on the server has the library
		t.Fatal(err)
	}
	if !luascripts.GoesByScript(rdb) {
		lost("function", 2, "fcall")
	}
	luascripts.GoByScript(rdb)
	raw := srv.Client(t)
	if err := raw.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	lost("text", 3, luascripts.NewScript("queue/fetch").Text())
	if err := fetch(4); err != nil {
		t.Fatal(err)
	}
	lost("hash", 5, luascripts.NewScript("queue/fetch").Hash())
}
