// Lets a broker's LogValidator look at batches as producers send them, one a file, and says what it makes of each.
//
//     java -cp {Kafka's jars}:{its class} ValidateProduced {now, ms} {timestamp type} {base offset} {leader epoch} {file} ...
//
// A line a file, in their order: "taken" and the batch as it would be appended, in hexadecimal digits, or "refused" and
// why. The limits of timestamps are those of a topic without properties of its own.

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.function.Supplier;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Timer;
import org.apache.kafka.server.config.ServerLogConfigs;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.xerial.snappy.SnappyError;

public class ValidateProduced {
    public static void main(String[] arguments) throws Exception {
        Time clock = new Stopped(Long.parseLong(arguments[0]));
        TimestampType type = TimestampType.forName(arguments[1]);
        long baseOffset = Long.parseLong(arguments[2]);
        int leaderEpoch = Integer.parseInt(arguments[3]);
        for (int i = 4; i < arguments.length; i++) {
            ByteBuffer content = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[i])));
            String outcome;
            try {
                outcome = "taken " + validated(content, clock, type, baseOffset, leaderEpoch);
            } catch (RuntimeException | SnappyError refusal) {
                outcome = "refused " + refusal.toString().replaceAll("\\s+", " ");
            }
            System.out.println(outcome);
        }
    }

    private static String validated(
            ByteBuffer content, Time clock, TimestampType type, long baseOffset, int leaderEpoch) {
        MemoryRecords records = MemoryRecords.readableRecords(content);
        RecordBatch batch = records.batches().iterator().next();
        batch.ensureValid();
        LogValidator validator = new LogValidator(
            records, new TopicPartition("orders", 0), clock, batch.compressionType(),
            Compression.of(batch.compressionType()).build(), false, RecordBatch.MAGIC_VALUE_V2, type,
            ServerLogConfigs.LOG_MESSAGE_TIMESTAMP_BEFORE_MAX_MS_DEFAULT,
            ServerLogConfigs.LOG_MESSAGE_TIMESTAMP_AFTER_MAX_MS_DEFAULT, leaderEpoch, AppendOrigin.CLIENT);
        MemoryRecords placed = validator.validateMessagesAndAssignOffsets(
            PrimitiveRef.ofLong(baseOffset), new Uncounted(), BufferSupplier.NO_CACHING).validatedRecords();
        byte[] bytes = new byte[placed.sizeInBytes()];
        placed.buffer().duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    private static class Uncounted implements LogValidator.MetricsRecorder {
        public void recordInvalidMagic() {}

        public void recordInvalidOffset() {}

        public void recordInvalidSequence() {}

        public void recordInvalidChecksums() {}

        public void recordNoKeyCompactedTopic() {}
    }

    private record Stopped(long milliseconds) implements Time {
        public long hiResClockMs() {
            return milliseconds;
        }

        public long nanoseconds() {
            return milliseconds * 1_000_000;
        }

        public void sleep(long ms) {}

        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {}

        public Timer timer(long timeoutMs) {
            throw new UnsupportedOperationException();
        }
    }
}
