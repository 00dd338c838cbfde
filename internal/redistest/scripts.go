package redistest

import (
	"bytes"
	"strings"

	"github.com/redis/go-redis/v9"
)

// IsScript says that a command runs a script: as a function, by its hash or by its text.
func IsScript(cmd redis.Cmder) bool {
	return cmd.Name() == "fcall" || strings.HasPrefix(cmd.Name(), "eval")
}

// RunsScript says the same of a request as a [Proxy] sees it.
func RunsScript(request []byte) bool {
	return bytes.Contains(request, []byte("fcall")) || bytes.Contains(request, []byte("evalsha"))
}

// IsUnknown says that a server answered a script call that it does not have the script.
func IsUnknown(err error) bool {
	return err != nil && (strings.HasPrefix(err.Error(), "NOSCRIPT") || strings.HasPrefix(err.Error(), "ERR Function not found"))
}
