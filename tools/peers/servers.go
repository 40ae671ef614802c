package main

import (
	"context"
	"fmt"
	"net"
	"strings"
)

// serveFunc serves on ln until ctx ends, and then returns nil, or until ln fails. It owns ln and closes it
// and all connections. It calls ready once clients can connect.
type serveFunc func(ctx context.Context, ln net.Listener, ready func()) error

type app struct {
	name  string
	serve serveFunc
}

type server struct {
	name, does string
	apps       []app
}

var servers = []server{
	{"netpoll", "github.com/cloudwego/netpoll", []app{
		{"echo", serveNetpoll(echoNetpoll)},
		{"lines", serveNetpoll(echoNetpollLines)},
		{"http", serveNetpoll(replyNetpollHTTP)},
	}},
	{"gnet", "github.com/panjf2000/gnet", []app{
		{"echo", serveGnet(replyEcho)},
		{"lines", serveGnet(replyLines)},
		{"http", serveGnet(replyHTTP)},
	}},
	{"nbio", "github.com/lesismal/nbio", []app{
		{"echo", serveNbio(replyEcho)},
		{"lines", serveNbio(replyLines)},
		{"http", serveNbioHTTP},
	}},
	{"fasthttp", "github.com/valyala/fasthttp", []app{{"http", serveFastHTTP}, {"web", nil}}},
	{"gobwas", "github.com/gobwas/ws", []app{{"ws", serveGobwas}}},
}

func findServer(server, app string) (serveFunc, error) {
	var known []string
	for _, s := range servers {
		known = append(known, s.name)
		if s.name != server {
			continue
		}
		for _, a := range s.apps {
			if a.name == app {
				return a.serve, nil
			}
		}
		return nil, usagef("--app is %q; expected an app of %s: %s", app, server, joinAppNames(s.apps))
	}
	return nil, usagef("--server is %q; expected one of %s", server, strings.Join(known, ", "))
}

func joinAppNames(apps []app) string {
	var names []string
	for _, a := range apps {
		names = append(names, a.name)
	}
	return strings.Join(names, ", ")
}

func describeServers() string {
	var b strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&b, "  %-10s %s (%s)\n", s.name, s.does, joinAppNames(s.apps))
	}
	return b.String()
}
