package main

import (
	"context"
	"fmt"
	"net"
	"strings"
)

// start serves on ln until ctx ends, then returns nil, or until ln fails. It owns
// ln and closes it, and every connection. It calls ready once clients can connect.
type start func(ctx context.Context, ln net.Listener, ready func()) error

// app is a protocol that a server speaks.
type app struct {
	name  string
	start start
}

// servers are what there is to compare with.
var servers = []struct {
	name, does string
	apps       []app
}{
	{"netpoll", "github.com/cloudwego/netpoll", []app{
		{"echo", serveNetpoll(netpollEcho)},
		{"lines", serveNetpoll(netpollLines)},
		{"http", serveNetpoll(netpollHTTP)},
	}},
	{"gnet", "github.com/panjf2000/gnet", []app{
		{"echo", serveGnet(answerEcho)},
		{"lines", serveGnet(answerLines)},
		{"http", serveGnet(answerHTTP)},
	}},
	{"nbio", "github.com/lesismal/nbio", []app{
		{"echo", serveNbio(answerEcho)},
		{"lines", serveNbio(answerLines)},
		{"http", serveNbioHTTP},
	}},
	{"fasthttp", "github.com/valyala/fasthttp", []app{{"http", serveFastHTTP}}},
}

// find finds how to serve an app with a server.
func find(server, name string) (start, error) {
	var known []string
	for _, s := range servers {
		known = append(known, s.name)
		if s.name != server {
			continue
		}
		for _, a := range s.apps {
			if a.name == name {
				return a.start, nil
			}
		}
		return nil, usagef("--app is %q; expected what %s has: %s", name, server, appNames(s.apps))
	}
	return nil, usagef("--server is %q; expected one of %s", server, strings.Join(known, ", "))
}

func appNames(apps []app) string {
	var names []string
	for _, a := range apps {
		names = append(names, a.name)
	}
	return strings.Join(names, ", ")
}

func describeServers() string {
	var b strings.Builder
	for _, s := range servers {
		fmt.Fprintf(&b, "  %-10s %s (%s)\n", s.name, s.does, appNames(s.apps))
	}
	return b.String()
}
