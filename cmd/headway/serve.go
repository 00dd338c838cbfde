package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/headwayq/headway/dashboard"
)

func serveCommand(a *app) *cobra.Command {
	cfg, listen := dashboard.Config{}, "127.0.0.1:8411"
	c := &cobra.Command{
		Use: "serve", Short: "the dashboard, a web page for this machine", Args: cobra.NoArgs,
		Long: `serve shows what waits, why and until when on a web page, until Ctrl-C. It answers only this
machine: to let others in, a program mounts dashboard.New and says who may do what.

It changes nothing unless --write is given; then the page asks for a reason of each change.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, err := loopback(listen)
			if err != nil {
				return err
			}
			if a.watch != 0 || a.output.format != "table" {
				return badUsage("serve has no --watch and no --output")
			}
			rdb, err := a.open()
			if err != nil {
				return err
			}
			if cfg.Throttle, err = a.config(); err != nil {
				return err
			}
			if len(a.policies) > 0 {
				if cfg.Policies, err = readPolicies(a.policies); err != nil {
					return err
				}
			}
			who := a.name()
			cfg.AllowWrites, cfg.ShowKeys, cfg.Who = a.write, a.showKeys, func(*http.Request) string { return who }
			board, err := dashboard.New(rdb, cfg)
			if err != nil {
				return usageError{err}
			}
			l, err := net.Listen("tcp", addr)
			if err != nil {
				return fmt.Errorf("serve: %w", err)
			}
			if _, err := fmt.Fprintf(a.stdout, "http://%s%s/\n", l.Addr(), cfg.Prefix); err != nil {
				return errors.Join(err, l.Close())
			}
			return serve(cmd.Context(), l, board)
		},
	}
	c.Flags().StringVar(&listen, "listen", listen, "`ADDRESS` of this machine; port 0 takes a free one")
	c.Flags().StringVar(&cfg.Prefix, "path", "", "`PATH` under which the pages are (default /)")
	c.Flags().DurationVar(&cfg.Refresh, "refresh", dashboard.RefreshDefault, "how old a page may be, a `DURATION`")
	c.Flags().IntVar(&cfg.Budget, "budget", dashboard.BudgetDefault, "`N` Redis commands a second at most, for all viewers together")
	c.Flags().StringVar(&cfg.AsynqmonURL, "asynqmon", "", "`URL` of asynqmon, for a link to it")
	return c
}

// loopback is an address of this machine, as --listen has it.
func loopback(listen string) (string, error) {
	addr, err := netip.ParseAddrPort(listen)
	if err != nil || !addr.Addr().IsLoopback() {
		return "", badUsage("--listen is %q, want an address of this machine such as 127.0.0.1:8411", listen)
	}
	return addr.String(), nil
}

// serve answers requests until ctx ends.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx }, // so that those who follow end with it
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return server.Shutdown(end)
}
