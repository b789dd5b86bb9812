// Counts messages by key with goka; ends when it has counted COUNT of them.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/lovoo/goka"
	"github.com/lovoo/goka/codec"
)

func main() {
	brokers, topic, group := []string{os.Args[1]}, goka.Stream(os.Args[2]), goka.Group(os.Args[3])
	wanted, err := strconv.ParseInt(os.Args[4], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var seen atomic.Int64
	count := func(ctx goka.Context, _ interface{}) {
		counted, _ := ctx.Value().(int64)
		ctx.SetValue(counted + 1)
		if seen.Add(1) == wanted {
			cancel()
		}
	}
	config := goka.DefaultConfig()
	config.Consumer.Offsets.Initial = -2
	goka.ReplaceGlobalConfig(config)
	tmc := goka.NewTopicManagerConfig()
	tmc.Table.Replication = 1
	builder := goka.TopicManagerBuilderWithConfig(config, tmc)
	graph := goka.DefineGroup(group,
		goka.Input(topic, new(codec.Bytes), count), goka.Persist(new(codec.Int64)))
	processor, err := goka.NewProcessor(brokers, graph, goka.WithTopicManagerBuilder(builder))
	if err != nil {
		log.Fatal(err)
	}
	if err := processor.Run(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(seen.Load())
}
