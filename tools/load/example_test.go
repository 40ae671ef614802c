package load_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"time"

	"github.com/myriad-go/myriad/tools/load"
)

// echoServer echoes all input until it is closed.
func echoServer() net.Listener {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return ln
}

// An open loop sends at planned times, regardless of the server: its latency is what a user would have waited.
func ExampleRun() {
	server := echoServer()
	defer server.Close()

	result, err := load.Run(context.Background(), load.Config{
		Target:      server.Addr().String(),
		Connections: 50,
		Rate:        load.Rate{PerSecond: 2000, Poisson: true},
		Duration:    200 * time.Millisecond,
	})
	if err != nil {
		log.Fatal(err)
	}
	expect, err := load.ParseExpectation("p99<30s") // a test asks for no more, whatever it runs on
	if err != nil {
		log.Fatal(err)
	}
	_, ok := expect.Check(result)
	fmt.Println(result.Connected, "connections; errors:", result.Err(), "; kept:", ok)
	// Output: 50 connections; errors: <nil> ; kept: true
}

// Templates generate every message anew, the same ones from the same seed.
func ExampleConfig_template() {
	server := echoServer()
	defer server.Close()

	result, err := load.Run(context.Background(), load.Config{
		Target:      server.Addr().String(),
		Connections: 10,
		Message:     `user \{connection.uid} says \{random 9}, number \{seq}` + "\n",
		Messages:    3,
		Seed:        42,
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Answered, "answers, as expected to the byte")
	// Output: 30 answers, as expected to the byte
}
