// Command netask asks the network the questions in its arguments, one after
// the other, and prints what it got: for the tests that ask, a refused network
// is an answer, not a failure. Every question has a bound.
//
//	tcp:HOST:PORT      is there a connection? 2 seconds
//	tries:HOST:PORT    the same, up to five times: yes if any got through
//	settle:HOST:PORT   waits until there is none any more, at most 30 seconds
//	lookup:NAME        does the resolver of this container know the name?
//	dns-udp:HOST:PORT  does this DNS server know kubernetes.default, by hand?
//	dns-tcp:HOST:PORT  the same over TCP
//	serve:HOST:PORT    accepts connections from now on, in the background
//	served:            yes if somebody connected, with the addresses
//	wait:SECONDS       waits
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

type answer struct {
	Question string `json:"question"`
	Yes      bool   `json:"yes"`
	// Got is an error, or what there is to say about a yes.
	Got string `json:"got,omitempty"`
	// From and To are when it was asked, in milliseconds since 1970.
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

func main() {
	var answers []answer
	for _, question := range os.Args[1:] {
		kind, rest, _ := strings.Cut(question, ":")
		from := time.Now()
		got, err := ask(kind, rest)
		a := answer{Question: question, Yes: err == nil, Got: got, From: from.UnixMilli(), To: time.Now().UnixMilli()}
		if err != nil {
			a.Got = err.Error()
		}
		answers = append(answers, a)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		os.Exit(1)
	}
}

func ask(kind, rest string) (string, error) {
	switch kind {
	case "tcp":
		return "", connect(rest)
	case "tries":
		var err error
		for range 5 {
			if err = connect(rest); err == nil {
				return "", nil
			}
			time.Sleep(200 * time.Millisecond)
		}
		return "", err
	case "settle":
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			if connect(rest) != nil {
				return "", nil
			}
		}
		return "", errors.New("still connected after 30 s")
	case "lookup":
		return lookup(net.DefaultResolver, rest)
	case "dns-udp", "dns-tcp":
		return lookup(&net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, strings.TrimPrefix(kind, "dns-"), rest)
		}}, "kubernetes.default.svc.cluster.local.")
	case "serve":
		return "", serve(rest)
	case "served":
		return served()
	case "wait":
		seconds, err := strconv.Atoi(rest)
		time.Sleep(time.Duration(seconds) * time.Second)
		return "", err
	}
	return "", fmt.Errorf("no question of netask: %q", kind)
}

func connect(address string) error {
	conn, err := net.DialTimeout("tcp", address, 2*time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

func lookup(resolver *net.Resolver, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	addresses, err := resolver.LookupHost(ctx, name)
	return strings.Join(addresses, " "), err
}

var (
	mu     sync.Mutex
	guests []string
)

func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if len(guests) < 100 {
				guests = append(guests, conn.RemoteAddr().String())
			}
			mu.Unlock()
			_ = conn.Close() // the connection was the question
		}
	}()
	return nil
}

func served() (string, error) {
	mu.Lock()
	defer mu.Unlock()
	if len(guests) == 0 {
		return "", errors.New("nobody connected")
	}
	return strings.Join(guests, " "), nil
}
